"""A request at work in the scheduler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..core import GenerationStats, Reading, Request, TokenChoice
from ..text.rules import TokenRule
from .answer import Answer
from .draft import DraftOptions, Speculation
from .logits import Row
from .saved.checkpoint import SPACING


class Running:
    """One request, its state, and where it is in it.

    prompt     its tokens, int32
    written    tokens of the answer; the state has read the first `state.position` of both together
    positions  lengths at which checkpoints are still to be taken, rising
    served     turn of the scheduler at which it was last at work
    """

    def __init__(
        self,
        request: Request,
        prompt: np.ndarray,
        state: Any,
        context: int,
        rules: Sequence[TokenRule],
        options: DraftOptions,
    ) -> None:
        self.request, self.prompt, self.state = request, prompt, state
        self.answer = Answer(request, context, rules)
        self.written: list[int] = []
        self.positions: list[int] = []
        self.served = 0
        self.reading = True  # the prompt is not all read
        self._options = options
        self._began = time.perf_counter()
        self._first = self._began

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def stats(self) -> GenerationStats:
        return self.answer.stats

    @property
    def progress(self) -> Reading:
        return Reading(self.state.position, len(self.prompt), self.stats.cached_tokens)

    def chunk(self, most: int) -> list[int]:
        """The next tokens of the prompt, up to the next checkpoint."""
        start = self.state.position
        end = min(start + most, len(self.prompt), *self.positions[:1])
        return list(self.request.prompt[start:end])

    @property
    def durable(self) -> bool:
        """Whether what is read so far is worth a place on the disk.

        The end of an answer is, also of one that was cancelled. Of a prompt the first and the last position that were
        wished for are, the system prompt and the turn; without wishes all but those that only split a long prompt.
        """
        if not self.reading or self.stats.finish_reason:
            return True
        position = int(self.state.position)
        wished = [length for length in self.request.keep if 0 < length <= len(self.prompt)]
        return position in (min(wished), max(wished)) if wished else position % SPACING != 0

    def tokens_read(self) -> np.ndarray:
        """What the state has read: int32 [position]."""
        return np.concatenate([self.prompt, np.array(self.written, np.int32)])[: self.state.position]

    def checkpoint_due(self) -> bool:
        """Whether a checkpoint was wished for here; it is then no longer."""
        due = bool(self.positions) and self.positions[0] == self.state.position
        if due:
            del self.positions[0]
        return due

    def begin(self, row: Row) -> list[TokenChoice]:
        """The prompt is read, this follows it: choose the first token."""
        self._first = time.perf_counter()
        self.stats.prefill_seconds = self._first - self._began
        self.reading = False
        choice = self.answer.choose(row)
        return self._chosen([] if choice is None else [choice])

    @cached_property
    def speculation(self) -> Speculation:
        """What proposes the next tokens; made after the first, as its index of a long prompt takes a moment."""
        made = Speculation(self.answer, self.state, [*self.request.prompt, *self.written], self._options)
        made.columns = self.written[-1:]
        return made

    def go_on(self, rows: Sequence[Row]) -> list[TokenChoice]:
        """Choose tokens after the columns of its part of a step."""
        return self._chosen(self.speculation.accept(rows))

    def _chosen(self, choices: list[TokenChoice]) -> list[TokenChoice]:
        self.written += [choice.id for choice in choices]
        if choices:
            self.stats.decode_seconds = time.perf_counter() - self._first
        return choices
