"""The application on a socket, and the words on the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn

from ..errors import RequestError
from ..files import open_model
from ..text.chat import ChatPreparer
from ..text.model_text import load_template, load_tokenizer
from .answer import Service
from .app import build
from .body import BodyLimits
from .config import Config
from .connections import Connection
from .guard import Guard
from .line import Line
from .supervisor import Engine


async def listen(config: Config, engine: Engine, listener: socket.socket) -> None:
    """Answer requests until a signal comes or the model turns out not to load."""
    service = await asyncio.to_thread(_service, config, engine)
    app = build(service, Guard(config.keys, config.hosts, config.origins), BodyLimits(config.body))
    server = _Server(
        service.line,
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=config.grace,
        ),
    )
    announcing = asyncio.create_task(_announce(engine, server, listener, config))
    await server.serve([listener])
    announcing.cancel()
    with suppress(asyncio.CancelledError):
        await announcing


def _service(config: Config, engine: Engine) -> Service:
    """The service with the text side of the model's files, of which only headers are read."""
    files = open_model([Path(file) for file in config.start.files])
    tokenizer = load_tokenizer(files)
    if tokenizer is None:
        raise RequestError(f"{config.start.files[0]} carries no vocabulary; a server needs one")
    return Service(
        engine,
        Line(config.start.sequences, config.waiting),
        config.name or Path(config.start.files[0]).stem,
        tokenizer,
        ChatPreparer(tokenizer, load_template(files, tokenizer)),
        config.defaults,
        config.log_prompts,
    )


async def _announce(engine: Engine, server: uvicorn.Server, listener: socket.socket, config: Config) -> None:
    """Say what is going on, and where to go when the model is loaded; end the server when it can't be."""
    host, port = listener.getsockname()[:2]
    host = _own_address() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{host}:{port}/"
    _say(f"Loading {Path(config.start.files[0]).name} …")
    if not await engine.settled():
        server.should_exit = True
        return
    assert engine.ready
    _say(f"Ready after {engine.ready.seconds:.1f} s: {url} (for clients: {url}v1; Ctrl-C ends it)")
    if config.open_page and not (_display() and await asyncio.to_thread(webbrowser.open, url)):
        _say(f"Open {url} in a browser.")


def _own_address() -> str:
    """The address of this machine in its network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "localhost"
        return str(probe.getsockname()[0])


def _display() -> bool:
    """Whether there is a screen to open a browser on."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Server(uvicorn.Server):
    """uvicorn, but a signal that ended it ends there: the process goes on to stop the engine."""

    def __init__(self, line: Line, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._line = line

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; the second time at once."""
        left = self._line.taken + self._line.waiting
        if left and not self.should_exit:
            _say(f"Finishing {left} answer{'s' if left > 1 else ''}; Ctrl-C again ends at once.")
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
