"""What tests of the scheduler share: requests, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jubako
from jubako.core import Event, Failed, Finished, Reading, Request, SamplingParams, Tokens
from jubako.engine.scheduler import Scheduler

MODELS = Path(jubako.__file__).parent / "models"
SMALL = [MODELS / "jubako-small.gguf", *MODELS.glob("jubako-small-mtp.gguf")]  # with a draft layer


class Heard:
    """All that was heard of some requests, by id."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []

    def take(self, events: Sequence[tuple[str, Event]]) -> None:
        self.events += events

    def tokens(self, id: str) -> list[int]:
        return [
            choice.id
            for one, event in self.events
            if one == id and isinstance(event, Tokens)
            for choice in event.tokens
        ]

    def end(self, id: str) -> Finished | Failed:
        [event] = [event for one, event in self.events if one == id and isinstance(event, (Finished, Failed))]
        return event

    def reading(self, id: str) -> list[Reading]:
        return [event for one, event in self.events if one == id and isinstance(event, Reading)]


def run(scheduler: Scheduler, *requests: Request, after: Callable[[int], Any] = lambda step: None) -> Heard:
    """Submit, then step until nothing is to do; `after` is called after each step with its number."""
    heard = Heard()
    for request in requests:
        scheduler.submit(request)
    step = 0
    while scheduler.busy:
        heard.take(scheduler.step())
        after(step)
        step += 1
        assert step < 5000
    return heard


def alone(model: jubako.Model, request: Request) -> list[int]:
    """The tokens that the library gives for a request, from an empty session without drafts."""
    p = request.params
    return list(
        model.generate(
            request.prompt,
            max_tokens=request.max_tokens,
            temperature=p.temperature,
            top_k=p.top_k,
            top_p=p.top_p,
            repetition_penalty=p.repetition_penalty,
            frequency_penalty=p.frequency_penalty,
            seed=p.seed,
            stop_ids=request.stop_ids,
            drafts=0,
        )
    )


def words(rng: np.random.Generator, count: int, vocabulary: int = 1000) -> tuple[int, ...]:
    """Random tokens with repetitions, so that suffixes match."""
    some = rng.integers(1, vocabulary, 12)
    return tuple(
        int(some[i]) if i < 12 else int(id)
        for i, id in zip(rng.integers(0, 16, count), rng.integers(1, vocabulary, count), strict=True)
    )


def request(id: str, prompt: Sequence[int], max_tokens: int = 16, **options: Any) -> Request:
    params = {name: options.pop(name) for name in list(options) if name in SamplingParams.__dataclass_fields__}
    return Request(id, tuple(prompt), SamplingParams(**params), max_tokens, **options)
