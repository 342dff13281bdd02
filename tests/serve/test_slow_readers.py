"""A client that takes nothing in holds nobody up, and one that asks for several answers is held up by nobody."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest

from jubako.core import Finished, GenerationStats, TokenChoice, Tokens
from jubako.serve.answer import Service
from jubako.serve.ask import Ask, Delta, Done, Update
from jubako.serve.line import Line
from jubako.serve.plain import PlainText
from jubako.serve.problems import QueueFull
from jubako.serve.protocol import Happened, Ready, Start
from jubako.serve.supervisor import Engine
from jubako.text.chat import ChatPreparer
from jubako.text.tokenizer import Tokenizer


class Letters:
    """As much of a tokenizer as plain text needs."""

    vocab_size = 256

    def piece(self, token_id: int, special: bool = False) -> bytes:
        return bytes([token_id])


def made(line: Line) -> tuple[Engine, Service, Ask]:
    """A service before an engine that does what the test says."""
    engine = Engine(Start(("none",)))
    engine.state, engine.ready = "ready", Ready(100, 256, 1, 0.0)
    tokenizer = cast(Tokenizer, Letters())
    service = Service(engine, line, "test", tokenizer, cast(ChatPreparer, None))
    return engine, service, Ask((1,), lambda: PlainText(tokenizer, ()))


def test_a_place_is_free_when_the_engine_is_done_whether_or_not_the_answer_was_read() -> None:
    asyncio.run(_read_slowly())


async def _read_slowly() -> None:
    engine, service, ask = made(Line(1, 0))
    async with aclosing(service.answer(ask)) as updates:
        first = asyncio.ensure_future(anext(updates))
        await asyncio.sleep(0)
        [id] = engine._answers
        engine._take(Happened(((id, Tokens((TokenChoice(97),))),)))
        assert isinstance(await first, Delta)
        assert service.line.taken == 1
        engine._take(
            Happened(((id, Tokens((TokenChoice(98),))), (id, Finished(GenerationStats(finish_reason="stop")))))
        )
        assert service.line.taken == 0  # though nobody has asked for the rest
        assert [type(update) for update in [await anext(updates), await anext(updates)]] == [Delta, Done]
    assert service.line.taken == 0  # and it was given back once


def test_a_request_that_was_let_in_gets_all_its_answers_though_others_come() -> None:
    asyncio.run(_ask_for_two())


async def _ask_for_two() -> None:
    engine, service, ask = made(Line(1, 1))

    async def finish_one() -> None:
        while not engine._answers:
            await asyncio.sleep(0)
        [id] = engine._answers
        ended = Finished(GenerationStats(finish_reason="stop"))
        engine._take(Happened(((id, Tokens((TokenChoice(97),))), (id, ended))))

    async def take() -> list[Update]:
        async with aclosing(service.answer(replace(ask, count=2))) as updates:
            return [update async for update in updates]

    two = asyncio.create_task(take())
    while not engine._answers:
        await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="1 requests are waiting"):
        await asyncio.wait_for(anext(service.answer(ask)), 5)
    for _ in range(2):
        await finish_one()
    done = [update.choice for update in await two if isinstance(update, Done)]
    assert sorted(done) == [0, 1] and service.counts == {"served": 2, "failed": 0, "cancelled": 0}
    assert (service.line.taken, service.line.waiting) == (0, 0)
    async with aclosing(service.answer(replace(ask, count=2))) as updates:
        first = asyncio.ensure_future(anext(updates))
        while not engine._answers:
            await asyncio.sleep(0)
        assert (service.line.taken, service.line.waiting) == (1, 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert (service.line.taken, service.line.waiting) == (0, 0)
