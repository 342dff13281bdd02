"""What `jubako serve` is told, checked before anything starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import SamplingParams
from ..errors import MachineError, RequestError
from .guard import host_name, is_loopback
from .protocol import Start

PORT = 8080
DEFAULTS = SamplingParams(temperature=0.7, top_k=20, top_p=0.95)
_TRIED = 10  # ports tried when none is named


@dataclass(frozen=True)
class Config:
    """What is told, and its defaults.

    start    what the engine is told
    port     None: the first free one from PORT on
    waiting  most requests in the queue
    grace    seconds that answers may take to end when the server stops
    body     bytes a request's body may have
    """

    start: Start
    host: str = "127.0.0.1"
    port: int | None = None
    keys: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    defaults: SamplingParams = DEFAULTS
    name: str | None = None
    waiting: int = 256
    body: int = 32 << 20
    grace: int = 60
    log_level: str = "info"
    log_prompts: bool = False
    open_page: bool = False

    def __post_init__(self) -> None:
        if not self.keys and not is_loopback(self.host):
            raise RequestError(
                f"--host {self.host} can be reached from other machines; that needs a key: "
                "--api-key KEY, --api-key-file FILE or JUBAKO_API_KEY"
            )
        if any(not key.isprintable() or not key.isascii() or " " in key for key in self.keys):
            raise RequestError("an API key must be printable ASCII without blanks")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise RequestError(f"--log-level is {self.log_level!r}; it can be debug, info, warning or error")
        for host in self.hosts:
            if host_name(host) != host:
                raise RequestError(f"--allow-host is {host!r:.80}; a name without port is expected, such as my.host")
        for origin in self.origins - {"*", "null"}:
            if "://" not in origin or origin.count("/") > 2:
                raise RequestError(f"--cors-origin is {origin!r:.80}; a site is expected, such as https://my.site")
        for name, value, low in (
            ("--queue", self.waiting, 0),
            ("--grace", self.grace, 0),
            ("--max-body", self.body, 1),
        ):
            if value < low:
                raise RequestError(f"{name} is {value}; it must be at least {low}")


def collect_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys from the command line, a file (one a line, # begins a remark) and JUBAKO_API_KEY (between blanks or commas).

    Raises RequestError for an empty key or a file without any.
    """
    keys = list(given)
    if any(not key.strip() for key in keys):
        raise RequestError("--api-key is empty")
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--api-key-file {file}: {error}") from None
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise RequestError(f"--api-key-file {file} holds no key")
        keys += found
    keys += os.environ.get("JUBAKO_API_KEY", "").replace(",", " ").split()
    return tuple(dict.fromkeys(key.strip() for key in keys))


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket. Raises MachineError where the address can't be had."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise MachineError(f"--host {host}: {error}") from None
    for candidate in range(PORT, PORT + _TRIED) if port is None else [port]:
        try:
            return socket.create_server((host, candidate), family=family, backlog=512)
        except (OSError, OverflowError) as error:
            problem = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    wanted = f"any port from {PORT} to {PORT + _TRIED - 1}" if port is None else f"port {port}"
    raise MachineError(f"can't listen on {wanted} of {host}: {problem}; choose another with --port")
