"""Connections that send their headers too slowly or without end, and too many of them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 << 10
HEADER_SECONDS = 10.0  # a request's head must be complete so long after its first byte, or after connecting
CONNECTIONS = 1000

_BODY = b'{"error":{"message":"too many connections","type":"server_error","param":null,"code":"overloaded"}}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_BEGUN = re.compile(rb"\r(\n(\r|u(p(g(r(a(d(e)?)?)?)?)?)?)?)?\Z", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits of time and size for the head of each request."""

    _deadline: asyncio.TimerHandle | None = None
    _head = 0  # bytes that came since a head was awaited
    _held = b""  # of a head: the line end, or more, that it ended with so far

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self._end(_BUSY)
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(self._without_upgrades(data))
        self._watch()
        if self._deadline is not None:
            self._head += len(data)
            if self._head > HEADER_BYTES:
                self._end(_LARGE)

    def _without_upgrades(self, data: bytes) -> bytes:
        """`data` with offers to speak another protocol, which a server may pass over, under another name.

        Java's client offers HTTP/2 with every request, and the parser takes no body from one that does. What may be
        the beginning of such an offer is held until the rest is there.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            return data
        data, self._held = self._held + data, b""
        end = data.find(b"\r\n\r\n")
        head, rest = (data, b"") if end < 0 else (data[:end], data[end:])
        if not rest and (begun := _BEGUN.search(head)):
            head, self._held = head[: begun.start()], begun[0]
        return _UPGRADE.sub(rb"\r\nx-declined:", head) + rest

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """A deadline runs exactly while the head of a request is awaited."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()
        elif self._deadline is None:
            self._head = 0
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._end, _SLOW)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
