"""The outermost layer: request ids, the guard, the log, and what becomes of errors that escape."""

from __future__ import annotations

import json
import logging
import re
import time
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .body import Gone, drain
from .guard import Guard
from .metrics import Metrics
from .problems import Problem, problem_of, shape_for
from .stream import ClientGone

log = logging.getLogger("jubako")

_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_DRAIN_SECONDS, _DRAIN_BYTES = 10.0, 256 << 20
_POLLED = ("/health", "/metrics", "/v1/status")
_CORS = {
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, *",
    "access-control-max-age": "600",
}


def note(scope: Scope, **fields: Any) -> None:
    """Add fields to the log line of a request."""
    scope.setdefault("jubako.log", {}).update(fields)


class Front:
    """Calls the application for requests that may be answered; everything it sends carries the request's id."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Exchange(self._app, self._guard, self._metrics, scope, receive, send).run()
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, app: ASGIApp, guard: Guard, metrics: Metrics, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.app, self.guard, self.metrics = app, guard, metrics
        self.began = time.monotonic()
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = self.headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else f"req_{token_hex(12)}"
        names = (b"x-request-id", b"request-id")  # OpenAI's clients look for the one, Anthropic's for the other
        self.extra = [*((name, self.id.encode()) for name in names), (b"x-content-type-options", b"nosniff")]
        self.scope = {**scope, "jubako.log": {}, "jubako.id": self.id}
        self.receive_inner, self.send_inner = receive, send
        self.status = 0
        self.complete = False
        self.unread = "content-length" in self.headers or "transfer-encoding" in self.headers

    async def run(self) -> None:
        try:
            await self.answer()
        except (Gone, ClientGone):
            self.status = 499
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                log.exception("a request failed", extra={"event": "error", "id": self.id})
            if self.status and not self.complete:
                raise
            if not self.status:
                await self.refuse(problem)
        finally:
            self.status = self.status or 499  # a stream whose client left before it began
            self.record()

    async def answer(self) -> None:
        path = self.scope["path"]
        self.guard.check_host(self.headers)
        origin = self.guard.check_origin(self.headers)
        if origin is not None:
            self.extra += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            if self.scope["method"] == "OPTIONS":
                await self.send({"type": "http.response.start", "status": 204, "headers": _encoded(_CORS)})
                await self.send({"type": "http.response.body", "body": b""})
                return
        self.scope["jubako.client"] = self.guard.check_key(path, self.headers) or self.address()
        # The connection leaves the body of an answer to HEAD away.
        method = {"HEAD": "GET"}.get(self.scope["method"], self.scope["method"])
        await self.app({**self.scope, "method": method}, self.receive, self.send)

    async def receive(self) -> Message:
        message = await self.receive_inner()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), *self.extra]}
        elif not message.get("more_body", False):
            self.complete = True
        await self.send_inner(message)

    async def refuse(self, problem: Problem) -> None:
        """Tell of a problem. The rest of the body is taken in once the answer is out: a client that is still sending
        would otherwise see a reset, not the answer."""
        body = json.dumps(shape_for(self.scope["path"])(problem)).encode()
        head = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
        if problem.status == 401:
            head["www-authenticate"] = "Bearer"
        if self.unread:
            head["connection"] = "close"
        await self.send({"type": "http.response.start", "status": problem.status, "headers": _encoded(head)})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        if self.unread and problem.kind != "timeout" and "expect" not in self.headers:
            await drain(self.receive, _DRAIN_SECONDS, _DRAIN_BYTES)
        await self.send({"type": "http.response.body", "body": b""})

    def address(self) -> str:
        return str((self.scope.get("client") or ("local", 0))[0])

    def record(self) -> None:
        """The line in the log and the counts."""
        seconds = time.monotonic() - self.began
        path = self.scope["path"]
        self.metrics.request(path, self.status, seconds)
        fields = {"method": self.scope["method"], "path": path[:200], "status": self.status, "client": self.address()}
        fields |= {"seconds": round(seconds, 4), **self.scope["jubako.log"]}
        level = logging.DEBUG if path in _POLLED else logging.INFO
        log.log(level, "request", extra={"event": "request", "id": self.id, **fields})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
