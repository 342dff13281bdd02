"""The server's end of the socket to the engine process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from .codec import loads
from .protocol import Command, Report, frame, frame_length

log = logging.getLogger("jubako")


class Wire(asyncio.Protocol):
    """Hands each report to `take` as it comes; `gone` is done when the engine's end is closed or sent garbage."""

    def __init__(self, take: Callable[[Report], None]) -> None:
        self.gone = asyncio.get_running_loop().create_future()
        self._take = take
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, command: Command) -> None:
        """Queue a command; nothing happens once the engine has gone."""
        if self._transport and not self._transport.is_closing():
            self._transport.write(frame(command))

    def close(self) -> None:
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while len(self._buffer) >= 4:
                end = 4 + frame_length(bytes(self._buffer[:4]))
                if len(self._buffer) < end:
                    break
                report = loads(bytes(self._buffer[4:end]), Report)
                del self._buffer[:end]
                self._take(report)
        except ValueError as error:
            log.error("the engine sent what can't be read: %s", error, extra={"event": "engine_garbled"})
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
