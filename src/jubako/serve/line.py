"""The line before the engine: first come, first served within a client, round robin between clients."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress

from .problems import QueueFull


class Place:
    """A place that was entered. It is given back when the engine is done, not when a slow client has taken all in."""

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line

    def leave(self) -> None:
        """Give the place back, the first time."""
        if self._line:
            self._line.leave()
            self._line = None


class Line:
    """Hands out `places` places; at most `waiting` requests may wait for one."""

    def __init__(self, places: int, waiting: int) -> None:
        self.places = places
        self.limit = waiting
        self.taken = 0
        self._clients: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return sum(len(line) for line in self._clients.values())

    def check(self, count: int = 1) -> None:
        """Raise QueueFull unless `count` more requests may come."""
        if self.taken + self.waiting + count > self.places + self.limit:
            raise QueueFull(f"{self.waiting} requests are waiting, the most this server lets wait; try again later")

    async def enter(self, client: str) -> None:
        """Wait for a place, which must be given back with `leave`. Raises QueueFull."""
        self.check()
        if self.taken < self.places and not self._clients:
            self.taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clients.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # the place came at the same moment
            else:
                self._forget(client, turn)
            raise

    def leave(self) -> None:
        """Give a place back; the next in turn gets it."""
        self.taken -= 1
        self.admit()

    def admit(self) -> None:
        """Let in as many as there are places for."""
        while self._clients and self.taken < self.places:
            client, line = self._clients.popitem(last=False)
            turn = line.popleft()
            if line:
                self._clients[client] = line  # behind the others
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        line = self._clients.get(client)
        if line is not None:
            with suppress(ValueError):
                line.remove(turn)
            if not line:
                del self._clients[client]
