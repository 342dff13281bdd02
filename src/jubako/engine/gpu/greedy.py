"""Speculative steps of greedy sequences: the likeliest tokens are drafted and verified without the host in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

from ...ops.gpu.columns import Part, step_table
from ...ops.gpu.draft_table import DRAFTED
from ...ops.gpu.ops import GpuOps
from ..draft import LAYER_MOST
from ..executor import DraftWish
from .ahead import Ahead
from .clock import Clock
from .draft import Drafts
from .step import Steps


class GreedySteps:
    """Runs them one by one, each with the drafts of the next one behind it where that can be."""

    def __init__(self, ops: GpuOps, steps: Steps, drafts: Drafts) -> None:
        self._steps, self._drafts, self._desk = steps, drafts, drafts.desk
        self._ahead = Ahead(ops, drafts)
        self._clock = Clock(drafts.desk.on_gpu)

    def capture(self, width: int) -> None:
        """Have ready what steps of one sequence take behind each other's drafts, where there are any."""
        if self._ahead.possible and 1 < width <= 1 + LAYER_MOST:
            self._drafts.capture_behind(width, 1, width - 1)
            self._steps.capture(width, whole=True)

    def run(self, wishes: Sequence[DraftWish]) -> tuple[list[list[int]], list[int], float]:
        """Draft, and read each wish's `next` and its drafts in one pass, for which there must be room.

        Gives what the columns read, by wish; what is likeliest after them, one after the other; seconds of drafting
        that were waited for. The states don't know yet that they have read it.
        """
        drafts, ahead = self._drafts, self._ahead
        spent = ahead.spent(time.perf_counter())
        depth, count = max(wish.depth for wish in wishes), len(wishes)
        ahead.capture(wishes)
        captured, under_way = drafts.captured, ahead.under_way(wishes)
        if not under_way:
            self._clock.start((count, depth))
            drafts.start(wishes)
            drafts.go_on(count, depth)
        parts = [
            Part([next, *[DRAFTED] * most], s.slot, s.position, s.pending, s.parity) for next, s, most, _ in wishes
        ]
        self._desk.write(step=step_table(parts))
        if not under_way:
            self._clock.stop(counts=drafts.captured == captured)
        lengths = [1 + wish.depth for wish in wishes]
        self._steps.run(sum(lengths), whole=under_way)
        ahead.launch(wishes, self._clock)
        found = self._desk.fetch()
        likeliest = found[0, : sum(lengths)].tolist()
        read = _shared(found[-1].tolist(), lengths)
        ahead.note([wish.state for wish in wishes], read, _shared(likeliest, lengths))
        seconds = self._clock.seconds((count, depth))
        return read, likeliest, max(seconds - spent, 0.0) if under_way else seconds


def _shared(line: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """A step's columns by sequence."""
    ends = list(accumulate(lengths))
    return [list(line[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
