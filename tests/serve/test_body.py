"""Limits of bodies, before anything is built from them."""

import asyncio
import contextlib
import time

import pytest
from starlette.types import Message, Receive, Scope, Send

from jubako.serve.body import Bodies, BodyLimits, check_json
from jubako.serve.problems import QueueFull, Refused

LIMITS = BodyLimits(depth=10, values=1000)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [1, 2, {"b": "c"}]}',
        b'{"a": "' + b"[{," * 5000 + b'"}',
        b'{"a": "\\"' + b"[" * 50 + b'\\\\"}',
        b"[" * 10 + b"]" * 10,
        b"[" + b"1," * 998 + b"1]",
        b"not json at all",
        b'{"a": 1e308, "b": 1e-400, "c": "NaN Infinity 1e999"}',
        b'{"unterminated": "[[[[[[[[[[[[[[[[[[[[[',
    ],
)
def test_what_may_pass(body: bytes) -> None:
    check_json(body, LIMITS)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[" * 11 + b"]" * 11, "invalid"),
        (b'{"a":' * 11 + b"1" + b"}" * 11, "invalid"),
        (b"[" * 1_000_000, "too_large"),
        (b"[" + b"1," * 1000 + b"1]", "too_large"),
        (b"[" + b"[]," * 1000 + b"1]", "too_large"),
        (b'["a\\\\",' + b"[" * 11, "invalid"),
        (b'{"a": NaN}', "invalid"),
        (b'{"a": -Infinity}', "invalid"),
        (b'{"a": 1e309}', "invalid"),
        (b'{"a": 1E+0400}', "invalid"),
    ],
)
def test_what_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(Refused) as error:
        check_json(body, LIMITS)
    assert error.value.kind == kind


@pytest.mark.parametrize("piece", [b'"', b'\\"', b'"\\', b'"a', b"\\", b'"[', b'{"a":', b"e0", b"0"])
def test_the_check_takes_linear_time(piece: bytes) -> None:
    body = piece * (32_000_000 // len(piece))
    began = time.thread_time()  # others may have the core meanwhile
    with contextlib.suppress(Refused):
        check_json(body, BodyLimits())
    assert time.thread_time() - began < 3


def test_large_bodies_of_many_clients_are_not_held_at_once() -> None:
    async def run() -> list[str]:
        began = asyncio.Event()

        async def work(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await began.wait()

        bodies = Bodies(work, BodyLimits(size=100, held=250))

        async def ask() -> str:
            async def receive() -> Message:
                return {"type": "http.request", "body": b"x" * 100, "more_body": False}

            async def send(_: Message) -> None:
                return

            try:
                await bodies({"type": "http", "method": "PUT", "headers": []}, receive, send)
            except QueueFull:
                return "refused"
            return "done"

        tasks = [asyncio.create_task(ask()) for _ in range(3)]
        await asyncio.wait(tasks, timeout=0.2)
        began.set()
        return [*await asyncio.gather(*tasks), await ask()]

    assert asyncio.run(run()) == ["done", "done", "refused", "done"]
