"""Drafts of the step to come, launched behind a step while the host still waits for that one.

    device   step ─ the drafts that agree ─► drafts ─────────────────► step …
    host          └ ids ─► choose, keep, write the next step's table ─┘

The step's last kernel takes for granted that the likeliest tokens are chosen (`ops.gpu.draft_accept`). If the host
chooses others, or has other work to do first, the drafts are made again: they leave keys and values where later passes
write over them, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from ...ops.gpu.draft_accept import agreeing
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.sequence import GpuState
from ..executor import DraftWish
from .clock import Clock
from .draft import Drafts


class _Taken(NamedTuple):
    """What is taken for granted of a sequence after a step: the tokens that wait for the draft layer, and the next.

    carried  as they are at that position
    list     the state's own of them, another one after a prompt, a reset or a resumed state
    """

    state: GpuState
    position: int
    carried: list[int]
    list: list[int]
    next: int


class Ahead:
    """Knows which drafts are under way, and whether they are those that are wished for."""

    def __init__(self, ops: GpuOps, drafts: Drafts) -> None:
        self._drafts = drafts
        # what other cards, the CPU or the disk have to do for a pass is only done while a verb runs
        self.possible = ops.alone and ops.pool.homes is None
        self._depth = 0  # of the drafts under way; 0: there are none
        self._taken: list[_Taken] = []
        self._mark = (-1, -1)
        self._since = 0.0

    def capture(self, wishes: Sequence[DraftWish]) -> None:
        """Have the graphs ready that these wishes take, behind a step and without one before.

        A capture runs them once, so that drafts under way are none any more.
        """
        depth, parts = max(wish.depth for wish in wishes), len(wishes)
        if self._fits(depth, parts):
            self._drafts.capture_behind(_width(wishes), parts, depth)

    def under_way(self, wishes: Sequence[DraftWish]) -> bool:
        """Whether the wishes' drafts are made or being made, and nothing else was since. The states then count as read
        what these read."""
        if not (self._goes_on(wishes) and all(wish.depth <= self._depth for wish in wishes)):
            return False
        if not all(map(_agree, wishes, self._taken)):
            return False
        for wish in wishes:
            wish.state.draft_position, wish.state.carried = wish.state.position, []
        return True

    def launch(self, wishes: Sequence[DraftWish], clock: Clock) -> None:
        """Launch the next drafts behind a step of these wishes, if the pass before was of these sequences too and there
        is room for them. The next `Desk.fetch` does not wait for them."""
        depth, parts = max(wish.depth for wish in wishes), len(wishes)
        self._depth = 0
        if not (self._fits(depth, parts) and self._goes_on(wishes)):
            return
        if not all(_has(wish.state, wish.state.position + wish.depth + 1 + depth) for wish in wishes):
            return
        self._drafts.desk.mark()
        clock.start((parts, depth))
        self._drafts.behind(_width(wishes), parts, depth)
        clock.stop()
        self._depth = depth

    def note(self, states: Sequence[GpuState], read: Sequence[list[int]], likeliest: Sequence[list[int]]) -> None:
        """The step is over: what its columns read and what is likeliest after them, by sequence. The states don't know
        yet."""
        self._taken = []
        for state, ids, after in zip(states, read, likeliest, strict=True):
            kept = agreeing(ids, after)
            self._taken.append(_Taken(state, state.position + kept, ids[:kept], state.carried, after[kept - 1]))
        self._mark, self._since = self._now(), time.perf_counter()

    def spent(self, now: float) -> float:
        """Seconds that drafts under way had been made for at that time, at most: the host had other things to do."""
        return now - self._since

    def _fits(self, depth: int, parts: int) -> bool:
        """Whether a step leaves rows of logits to the drafts, and the index keys' ring what a pass over them needs."""
        return self.possible and parts * (2 + depth) <= COLUMNS and 2 * depth <= COLUMNS

    def _goes_on(self, wishes: Sequence[DraftWish]) -> bool:
        return self._mark == self._now() and [wish.state for wish in wishes] == [one.state for one in self._taken]

    def _now(self) -> tuple[int, int]:
        """Other passes, and captures, change this."""
        return self._drafts.desk.passes, self._drafts.captured


def _width(wishes: Sequence[DraftWish]) -> int:
    return sum(1 + wish.depth for wish in wishes)


def _has(state: GpuState, end: int) -> bool:
    return end <= state.context and state.lacks(end) == 0


def _agree(wish: DraftWish, taken: _Taken) -> bool:
    state = wish.state
    same = state.carried is taken.list and state.carried == taken.carried
    return same and wish.next == taken.next and state.position == taken.position
