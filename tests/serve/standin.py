"""An engine process for tests: the scheduler's interface over `Model.generate`, one request after another."""

from __future__ import annotations

from collections import deque
from typing import Any

from jubako.core import Event, Finished, Reading, Request, TokenChoice, Tokens
from jubako.engine.generate import Generation
from jubako.engine.model import Model
from jubako.serve.engine import main
from jubako.serve.protocol import Start


class StandIn:
    def __init__(self, model: Model, start: Start) -> None:
        self.model = model
        self.waiting: deque[Request] = deque()
        self.running: tuple[Request, Generation] | None = None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def cancel(self, id: str) -> None:
        self.waiting = deque(request for request in self.waiting if request.id != id)
        if self.running and self.running[0].id == id:
            self.running = None

    def step(self) -> list[tuple[str, Event]]:
        if self.running is None:
            request = self.waiting.popleft()
            p = request.params
            generation = self.model.generate(
                list(request.prompt),
                max_tokens=request.max_tokens,
                temperature=p.temperature,
                top_k=p.top_k,
                top_p=p.top_p,
                min_p=p.min_p,
                seed=p.seed,
                stop_ids=request.stop_ids,
            )
            self.running = request, generation
            return [(request.id, Reading(0, len(request.prompt), 0))]
        request, generation = self.running
        try:
            token = next(generation)
        except StopIteration:
            self.running = None
            return [(request.id, Finished(generation.stats))]
        top = ((int(token), -0.5), (0, -9.0)) if request.top_logprobs else ()
        choice = TokenChoice(
            int(token), -0.5 if request.top_logprobs is not None else None, top[: request.top_logprobs]
        )
        return [(request.id, Tokens((choice,)))]

    def status(self) -> dict[str, Any]:
        return {"sequences": {"running": int(self.running is not None), "waiting": len(self.waiting), "limit": 1}}

    def close(self) -> None:
        pass


if __name__ == "__main__":
    main(StandIn)
