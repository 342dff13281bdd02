"""The core under all dialects: asks in, updates out, through the line and the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from secrets import token_hex

from .. import __version__
from ..core import Event, Failed, Finished, Request, SamplingParams
from ..errors import RequestError
from ..text.chat import ChatPreparer
from ..text.tokenizer import Tokenizer
from .ask import Ask, Done, Progress, Update
from .line import Line, Place
from .metrics import Metrics
from .problems import ContextExceeded, EngineDown
from .reading import Reader
from .supervisor import Engine

log = logging.getLogger("jubako")


@dataclass
class Service:
    """What every handler needs: the engine with the line before it, and the model's text side.

    name         what the model is called
    defaults     sampling where a request says nothing
    log_prompts  write prompts and answers to the log
    counts       answers so far by how they ended
    """

    engine: Engine
    line: Line
    name: str
    tokenizer: Tokenizer
    preparer: ChatPreparer
    defaults: SamplingParams = field(default_factory=SamplingParams)
    log_prompts: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    counts: dict[str, int] = field(default_factory=lambda: {"served": 0, "failed": 0, "cancelled": 0})

    @property
    def fingerprint(self) -> str:
        """What `seed` depends on besides the request, in OpenAI's sense."""
        return f"jubako-{__version__}"

    @property
    def context(self) -> int:
        """Tokens a sequence may have. Raises EngineDown before the engine was ever ready."""
        if self.engine.ready is None:
            raise EngineDown(self.engine.explain())
        return self.engine.ready.context

    def check_ready(self) -> None:
        """Raise EngineDown unless the engine can answer."""
        if self.engine.state != "ready":
            raise EngineDown(self.engine.explain())

    def check(self, *asks: Ask) -> None:
        """Raise ContextExceeded, EngineDown or RequestError where the engine could not answer."""
        for ask in asks:
            if not ask.prompt:
                raise RequestError("the prompt is empty; give at least one token")
            if len(ask.prompt) >= self.context:
                raise ContextExceeded(len(ask.prompt), self.context)

    async def answer(self, *asks: Ask) -> AsyncGenerator[Update, None]:
        """The answers as they come, interleaved; choices are numbered through all asks. Closing it cancels them.

        Raises what `check` does, and QueueFull unless all of them are let in.

        Of several answers to one prompt the first reads it; the others start when it is in and find it known.
        """
        self.check(*asks)
        places = self.line.let_in(sum(ask.count for ask in asks))
        updates = self._choice(asks[0], 0, 0, places[0]) if len(places) == 1 else self._choices(asks, places)
        try:
            async with aclosing(updates):
                async for update in updates:
                    yield update
        finally:
            for place in places:
                place.leave()

    async def _choices(self, asks: tuple[Ask, ...], places: Sequence[Place]) -> AsyncGenerator[Update, None]:
        merged: asyncio.Queue[Update | Exception] = asyncio.Queue(64)

        async def follow(ask: Ask, number: int, choice: int, is_read: asyncio.Event) -> None:
            try:
                if number:
                    await is_read.wait()
                async with aclosing(self._choice(ask, number, choice, places[choice])) as updates:
                    async for update in updates:
                        if not isinstance(update, Progress):
                            is_read.set()
                        await merged.put(update)
            except Exception as error:
                await merged.put(error)

        tasks: list[asyncio.Task[None]] = []
        for ask in asks:
            is_read = asyncio.Event()
            for number in range(ask.count):
                tasks.append(asyncio.create_task(follow(ask, number, len(tasks), is_read)))
        try:
            left = len(tasks)
            while left:
                update = await merged.get()
                if isinstance(update, Exception):
                    raise update
                left -= isinstance(update, Done)
                yield update
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choice(self, ask: Ask, number: int, choice: int, place: Place) -> AsyncGenerator[Update, None]:
        ended = "cancelled"
        try:
            await place.enter(ask.asker.client)
            try:
                async with aclosing(self._engine_answer(ask, number, choice, place)) as updates:
                    async for update in updates:
                        ended = "served" if isinstance(update, Done) else ended
                        yield update
            finally:
                place.leave()
        except Exception:
            ended = "failed"
            raise
        finally:
            self.counts[ended] += 1

    async def _engine_answer(self, ask: Ask, number: int, choice: int, place: Place) -> AsyncGenerator[Update, None]:
        request = self._request(ask, number)
        reader = Reader(ask, choice)
        try:
            async for events in _batches(self.engine.submit(request, place.leave)):
                for update in reader.take(events):
                    if isinstance(update, Done):
                        self._record(ask, reader, update)
                    yield update
                if reader.done:
                    return
        finally:
            self.engine.cancel(request.id)

    def _request(self, ask: Ask, number: int) -> Request:
        room = self.context - len(ask.prompt)
        seed = ask.params.seed
        return Request(
            id=token_hex(12),
            prompt=ask.prompt,
            params=ask.params if seed is None or not number else replace(ask.params, seed=seed + number),
            max_tokens=room if ask.max_tokens is None else min(ask.max_tokens, room),
            stop_ids=ask.stop_ids,
            keep=ask.keep if ask.count == 1 else tuple(sorted({*ask.keep, len(ask.prompt) - 1} - {0})),
            logit_bias=ask.logit_bias,
            top_logprobs=ask.top_logprobs,
            constraint=ask.constraint,
            thinking=ask.thinking,
        )

    def _record(self, ask: Ask, reader: Reader, done: Done) -> None:
        usage = done.usage
        self.metrics.answer(done.reason, usage)
        fields: dict[str, object] = {
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "reasoning_tokens": usage.reasoning,
            "prompt_seconds": round(usage.stats.prefill_seconds, 4),
            "answer_seconds": round(usage.stats.decode_seconds, 4),
        }
        if self.log_prompts:
            known = [id for id in reader.ids if id < self.tokenizer.vocab_size]
            fields["prompt"] = self.tokenizer.decode(ask.prompt, special=True)
            fields["answer"] = self.tokenizer.decode(known, special=True)
        log.info("answer", extra={"event": "answer", "id": ask.asker.request_id, "reason": done.reason, **fields})


async def _batches(events: asyncio.Queue[Event]) -> AsyncIterator[list[Event]]:
    """What has come since the last look, up to the last event."""
    ended = False
    while not ended:
        batch = [await events.get()]
        while not events.empty():
            batch.append(events.get_nowait())
        ended = isinstance(batch[-1], (Finished, Failed))
        yield batch
