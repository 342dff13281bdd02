"""The line before the engine: first come, first served within a client, round robin between clients."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress

from .problems import QueueFull


class Place:
    """What an answer was let in for. It is given back when the engine is done, not when a slow client has taken all
    in; or without ever having been entered."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._leave: Callable[[], None] | None = line.stay_away

    async def enter(self, client: str) -> None:
        """Wait in the line until it is free."""
        self._leave = None
        await self._line.enter(client)
        self._leave = self._line.leave

    def leave(self) -> None:
        """Give the place back, the first time."""
        if self._leave:
            leave, self._leave = self._leave, None
            leave()


class Line:
    """Hands out `places` places; at most `waiting` requests may wait for one."""

    def __init__(self, places: int, waiting: int) -> None:
        self.places = places
        self.limit = waiting
        self.taken = 0
        self.coming = 0  # let in, and not in the line yet
        self._clients: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return self.coming + sum(len(line) for line in self._clients.values())

    def check(self, count: int = 1) -> None:
        """Raise QueueFull unless `count` more requests may come."""
        if self.taken + self.waiting + count > self.places + self.limit:
            raise QueueFull(f"{self.waiting} requests are waiting, the most this server lets wait; try again later")

    def let_in(self, count: int = 1) -> list[Place]:
        """Places for the `count` answers of a request, whenever each of them enters; all or none. Raises QueueFull."""
        self.check(count)
        self.coming += count
        return [Place(self) for _ in range(count)]

    def stay_away(self) -> None:
        """One that was let in does not come."""
        self.coming -= 1

    async def enter(self, client: str) -> None:
        """Wait, once let in, for a place, which must be given back with `leave`."""
        self.coming -= 1
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
