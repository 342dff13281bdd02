"""Bodies: how large, how slow, how deep they may be, before anything looks at them."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from itertools import accumulate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import QueueFull, Refused

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_NUMBERS = re.compile(rb"NaN|Infinity|[eE]\+?0*(?:309|3[1-9]\d|[4-9]\d\d|[1-9]\d{3})")  # read as NaN or infinite
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


@dataclass(frozen=True)
class BodyLimits:
    """size of one and held by all together in bytes; idle and total in seconds; depth of nesting; values in JSON."""

    size: int = 32 << 20
    held: int = 512 << 20
    idle: float = 10.0
    total: float = 120.0
    depth: int = 100
    values: int = 500_000


class Bodies:
    """Reads the whole body before the application is called, and refuses what is beyond the limits.

    A refused body is read to its end (within limits) while the answer is already out, so that a client that is still
    sending gets to see it.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits
        self._held = 0  # bytes of all requests at work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if encoding.lower() not in ("identity", ""):
            raise Refused("media_type", f"the body is encoded as {encoding!r:.40}; send it as it is")
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limits.size:
            self._too_large()
        parts: list[bytes] = []
        try:
            await self._read(receive, parts)
            await self._call(scope, receive, send, b"".join(parts))
        finally:
            self._held -= sum(map(len, parts))

    async def _call(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        """The application, with the body as if it came in one piece."""
        if body and scope["method"] == "POST":
            check_json(body, self._limits)
            others = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
        first = True

        async def replay() -> Message:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive, parts: list[bytes]) -> None:
        """The body into `parts`, which count as held."""
        size, deadline = 0, time.monotonic() + self._limits.total
        while True:
            left = min(self._limits.idle, deadline - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                raise Refused("timeout", "the body of the request did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._held += len(parts[-1])
            if size > self._limits.size:
                self._too_large()
            if self._held > self._limits.held:
                raise QueueFull("too many large requests at a time; try again later")
            if not message.get("more_body", False):
                return

    def _too_large(self) -> None:
        raise Refused("too_large", f"the body of the request is larger than the limit of {self._limits.size} bytes")


class Gone(Exception):
    """The client left before its request was complete."""


def check_json(body: bytes, limits: BodyLimits) -> None:
    """Raise Refused where JSON is nested too deeply, holds too many values or what Python alone takes for a number.

    Linear in the length, and before anything is built from it: a few bytes of JSON make an object of a hundred.
    """
    if body.count(b'"') > 2 * limits.values or body.count(b"\\") > 8 * limits.values:
        raise Refused("too_large", f"the body of the request holds more than {limits.values} texts")
    outside = _STRINGS.sub(b"", body)
    if outside.count(b",") + outside.count(b"[") + outside.count(b"{") > limits.values:
        raise Refused("too_large", f"the body of the request holds more than {limits.values} values")
    if wrong := _NO_NUMBERS.search(outside):
        raise Refused("invalid", f"the body is not JSON: {wrong[0].decode()} is or makes no number")
    brackets = outside.translate(None, _BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limits.depth:
        raise Refused("invalid", f"the body of the request is nested deeper than {limits.depth} levels")


async def drain(receive: Receive, seconds: float, size: int) -> None:
    """Take in what a client still sends, up to `size` bytes and for `seconds`, and throw it away."""
    deadline = time.monotonic() + seconds
    while size > 0 and time.monotonic() < deadline:
        try:
            message = await asyncio.wait_for(receive(), deadline - time.monotonic())
        except TimeoutError:
            return
        size -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
