"""A client that takes nothing in holds nobody up."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import cast

from jubako.core import Finished, GenerationStats, TokenChoice, Tokens
from jubako.serve.answer import Service
from jubako.serve.ask import Ask, Delta, Done
from jubako.serve.line import Line
from jubako.serve.plain import PlainText
from jubako.serve.protocol import Happened, Ready, Start
from jubako.serve.supervisor import Engine
from jubako.text.chat import ChatPreparer
from jubako.text.tokenizer import Tokenizer


class Letters:
    """As much of a tokenizer as plain text needs."""

    vocab_size = 256

    def piece(self, token_id: int, special: bool = False) -> bytes:
        return bytes([token_id])


def test_a_place_is_free_when_the_engine_is_done_whether_or_not_the_answer_was_read() -> None:
    asyncio.run(_read_slowly())


async def _read_slowly() -> None:
    engine = Engine(Start(("none",)))
    engine.state, engine.ready = "ready", Ready(100, 256, 1, 0.0)
    tokenizer = cast(Tokenizer, Letters())
    service = Service(engine, Line(1, 0), "test", tokenizer, cast(ChatPreparer, None))
    ask = Ask((1,), lambda: PlainText(tokenizer, ()))
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
