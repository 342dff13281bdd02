"""What a stream says when the engine fails under it, in the dialects that have an event for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from jubako.core import SamplingParams
from jubako.serve.anthropic.answer import MessageAnswer
from jubako.serve.anthropic.messages import _failed
from jubako.serve.ask import Ask, Delta, Progress, Update
from jubako.serve.problems import EngineFailed
from jubako.serve.responses.answer import ResponseAnswer
from jubako.serve.responses.request import ResponsesRequest
from jubako.serve.stream import EventStream
from jubako.text.pieces import ContentText, ThinkingText


class Failing:
    """A service whose engine breaks down in the middle of an answer."""

    name = "model"
    tokenizer = None

    async def answer(self, *asks: Ask) -> AsyncGenerator[Update, None]:
        yield Progress(0, 3, 3, 1)
        yield Delta(0, (ThinkingText("hm"), ContentText("Hel")), ())
        raise EngineFailed("the engine stopped")


ASK: Any = Ask(prompt=(1, 2, 3), parser=lambda: SimpleNamespace(), params=SamplingParams())


def events_of(stream: EventStream) -> list[tuple[str, dict[str, Any]]]:
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    asyncio.run(stream({"type": "http"}, receive, send))  # type: ignore[arg-type]
    blocks = b"".join(sent).decode().strip().split("\n\n")
    return [(head.removeprefix("event: "), json.loads(data[6:])) for head, data in (b.split("\n", 1) for b in blocks)]


def test_anthropics_stream_ends_with_an_error_event() -> None:
    answer = MessageAnswer(Failing(), ASK, True)  # type: ignore[arg-type]
    events = events_of(EventStream(answer.events(), _failed))
    assert events[0][1]["message"]["usage"]["cache_read_input_tokens"] == 1
    assert events[-1] == (
        "error",
        {"type": "error", "error": {"type": "api_error", "message": "the engine stopped"}},
    )
    assert "message_stop" not in [name for name, _ in events]


def test_a_response_that_fails_says_so_and_keeps_its_numbers() -> None:
    body = ResponsesRequest(input="x")
    answer = ResponseAnswer(Failing(), body, ASK)  # type: ignore[arg-type]
    events = events_of(EventStream(answer.events(), answer.failed))
    name, last = events[-1]
    assert (name, last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine stopped"}
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))


def test_an_error_before_the_first_event_is_an_ordinary_answer() -> None:
    class Refusing(Failing):
        async def answer(self, *asks: Ask) -> AsyncGenerator[Update, None]:
            raise EngineFailed("not yet")
            yield  # a generator

    answer = MessageAnswer(Refusing(), ASK, True)  # type: ignore[arg-type]
    with pytest.raises(EngineFailed):
        events_of(EventStream(answer.events(), _failed))
