"""Who may ask: keys, host names, origins."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlsplit

from .problems import Refused

OPEN_PATHS = ("/", "/icon.svg", "/health")  # and /assets/: these tell nothing about anyone's use


@dataclass(frozen=True)
class Guard:
    """keys: none means that everyone who can connect may ask. hosts, origins: names allowed beyond the usual."""

    keys: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    _digests: tuple[bytes, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_digests", tuple(sha256(key.encode()).digest() for key in self.keys))

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a Host that is no address and no name of this machine: a web page elsewhere that rebinds its name.

        Raises Refused.
        """
        host = headers.get("host", "")
        name = host_name(host)
        if name is None:
            raise Refused("invalid", f"the Host header {host!r:.80} is not a host name")
        if not (is_address(name) or name in LOCAL_NAMES or name.endswith(".localhost") or name in self.hosts):
            raise Refused(
                "misdirected",
                f"the host name {name!r:.80} is not one this server answers to; start it with --allow-host {name:.80}",
            )

    def check_origin(self, headers: Mapping[str, str]) -> str | None:
        """The origin of a request from another site's page, when it may ask; None for all other requests.

        Raises Refused where that site was not named with --cors-origin.
        """
        origin = headers.get("origin")
        if origin is None:
            return None
        if origin in self.origins or "*" in self.origins:
            return origin
        if _place(origin) == headers.get("host"):
            return None
        raise Refused("permission", f"pages of {origin!r:.80} may not use this server; allow it with --cors-origin")

    def check_key(self, path: str, headers: Mapping[str, str]) -> str:
        """Who asks, as a short name for the queue and the log, never the key itself; "" without keys.

        Takes `Authorization: Bearer KEY` and `x-api-key: KEY`. Raises Refused.
        """
        if not self.keys or path in OPEN_PATHS or path.startswith("/assets/"):
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = sha256(given.encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if not any(matches):
            said = "Incorrect API key provided" if given else "no API key was given"
            raise Refused(
                "authentication",
                f"{said}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return f"key {matches.index(True) + 1}"


def host_name(host: str) -> str | None:
    """The name in a Host header without its port, in lower case; None where it is no such header."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    return name.rstrip(".") if name and parts.netloc == host and "@" not in host else None


def _place(origin: str) -> str | None:
    """Host and port of an origin; None where it is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Whether a host is an IP address; no name can be rebound to that."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound to `host`."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _names() -> Iterable[str]:
    own = socket.gethostname().lower()
    return ("localhost", own, f"{own}.local")


LOCAL_NAMES = frozenset(_names())
