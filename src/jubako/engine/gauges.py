"""What the scheduler did lately, for those who watch it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WINDOW = 3.0  # seconds that speeds are a mean of
STEPS = 32  # steps that times are a mean of


class Gauges:
    """Counts tokens and measures stages of steps. Speeds are over the last few seconds, 0 when idle."""

    def __init__(self) -> None:
        self.steps = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.drafted: Counter[int] = Counter()  # by place in the step
        self.accepted: Counter[int] = Counter()
        self._lately: deque[tuple[float, int, int, int]] = deque()  # time, prompt tokens, generated tokens, their steps
        self._stages: deque[dict[str, float]] = deque(maxlen=STEPS)
        self._current: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a part of the current step."""
        began = time.perf_counter()
        yield
        self._current[name] = self._current.get(name, 0.0) + time.perf_counter() - began

    def split(self, name: str, out_of: str, seconds: float) -> None:
        """Call a part of a stage's time by a name of its own, before that stage."""
        seconds = min(seconds, self._current[out_of])
        self._current = {name: seconds, **self._current, out_of: self._current[out_of] - seconds}

    def spent(self) -> float:
        """Seconds of all stages of the current step."""
        return sum(self._current.values())

    def step(self, read: int, generated: int, sequences: int) -> None:
        """End a step that read so many prompt tokens, or gave so many tokens to so many sequences."""
        self.steps += 1
        self.prompt_tokens += read
        self.generated_tokens += generated
        self._lately.append((time.monotonic(), read, generated, sequences))
        self._stages.append(self._current)
        self._current = {}

    def drafts(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Add the counts of one answer."""
        self.drafted.update(dict(enumerate(drafted)))
        self.accepted.update(dict(enumerate(accepted)))

    def figures(self) -> dict[str, Any]:
        """speed, step, drafts, totals."""
        now = time.monotonic()
        while self._lately and self._lately[0][0] < now - WINDOW:
            self._lately.popleft()
        read, generated, parts = (sum(entry[i] for entry in self._lately) for i in (1, 2, 3))
        names = list(dict.fromkeys(name for step in self._stages for name in step))
        mean = {name: 1000 * sum(step.get(name, 0.0) for step in self._stages) / len(self._stages) for name in names}
        return {
            "speed": {
                "tokens_per_second": generated / WINDOW,
                "prompt_tokens_per_second": read / WINDOW,
                "tokens_per_step": generated / parts if parts else 0.0,
            },
            "step": {"count": self.steps, "ms": sum(mean.values()), "stages": mean},
            "drafts": {
                "drafted": [self.drafted[place] for place in range(len(self.drafted))],
                "accepted": [self.accepted[place] for place in range(len(self.drafted))],
            },
            "totals": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "generated_tokens": self.generated_tokens,
            },
        }
