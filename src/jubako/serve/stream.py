"""Responses that stop working when their client has gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from .problems import Problem, problem_of

HEARTBEAT = 5.0  # seconds without a byte after which a comment is sent
STALLED = 60.0  # seconds a client may take nothing in

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(http: HttpRequest, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes; then raises ClientGone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnect(http.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class Json(JSONResponse):
    """JSON that is always sent: half a surrogate pair, which is no text in UTF-8, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event; `data` is written as JSON."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode(errors="replace")


class EventStream(Response):
    """Server-sent events as `events` makes them, with comments in between when it takes long.

    An error before the first event is raised, and becomes an ordinary response; a later one is written by `explain`.
    The generator is closed when the client has gone or takes nothing in any more.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        explain: Callable[[Problem], bytes],
        heartbeat: bytes = b": keep-alive\n\n",
        seconds: float | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._explain = explain
        self._heartbeat = heartbeat
        self._seconds = HEARTBEAT if seconds is None else seconds
        self._started = False
        self._sending_since: float | None = None
        self._sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.create_task(self._pump(send)),
            asyncio.create_task(_disconnect(receive)),
            asyncio.create_task(self._beat(send)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                async for chunk in events:
                    await self._write(send, chunk)
            except Exception as error:
                if not self._started:
                    raise
                await self._write(send, self._explain(problem_of(error)))
            await self._put(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, chunk: bytes) -> None:
        if not self._started:
            self._started = True
            await self._put(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._put(send, {"type": "http.response.body", "body": chunk, "more_body": True})

    async def _put(self, send: Send, message: Message) -> None:
        self._sending_since = time.monotonic()
        await send(message)
        self._sending_since = None
        self._sent = time.monotonic()

    async def _beat(self, send: Send) -> None:
        """Comments while nothing else is sent; ends when the client takes nothing in."""
        while True:
            await asyncio.sleep(max(0.05, self._sent + self._seconds - time.monotonic()))
            now = time.monotonic()
            if self._sending_since is not None:
                if now - self._sending_since > STALLED:
                    return
            elif now - self._sent >= self._seconds:
                await self._write(send, self._heartbeat)
