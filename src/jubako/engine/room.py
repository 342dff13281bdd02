"""Memory for several sequences and their checkpoints, planned at start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from ..core import Request
from ..errors import MachineError
from .executor import STEP_COLUMNS
from .running import Running
from .session_file import Layout

CHECKPOINT_SHARE = 8  # one part in so many of the free memory is for checkpoints
CHECKPOINT_MOST = 8 << 30  # bytes, unless asked for
SPARE_PAGES = 2  # that a sequence may replace by copies while its own are shared


@dataclass(frozen=True)
class RoomPlan:
    """pool_tokens: room for keys and values. prefix_bytes: budget of the checkpoints. total: bytes of everything."""

    pool_tokens: int
    prefix_bytes: int
    total: int


def plan_room(
    free: int, sequences: int, context: int, token_bytes: int, fixed_bytes: int, prefix_bytes: int | None
) -> RoomPlan:
    """What `free` bytes hold: a whole context for each sequence if they fit, else as much as half of them give.

    token_bytes of keys and values, fixed_bytes of a sequence's other state. Memory is committed as it fills, but must
    be there. Raises MachineError where not even one context fits.
    """
    prefix = min(free // CHECKPOINT_SHARE, CHECKPOINT_MOST) if prefix_bytes is None else prefix_bytes
    states = sequences * fixed_bytes
    running = max(context, min(sequences * context, free // 2 // token_bytes))
    total = running * token_bytes + states + prefix
    if total > free:
        raise MachineError(
            f"a context of {context} tokens needs {context * token_bytes / 1e9:.2f} GB for keys and values, "
            f"{sequences} sequences {states / 1e9:.2f} GB for their states, checkpoints {prefix / 1e9:.2f} GB, "
            f"and {free / 1e9:.2f} GB of memory are free; ask for a smaller context or fewer sequences"
        )
    return RoomPlan(running + prefix // token_bytes, prefix, total)


class Room:
    """Owns the states of up to `sequences` sequences of `context` tokens and the pool of their pages.

    idle: states that nobody uses. key: 32 bytes, of the model. Raises MachineError if it does not fit in memory.
    """

    def __init__(self, executor: Any, sequences: int, context: int, prefix_bytes: int | None, key: bytes) -> None:
        if not hasattr(executor, "new_pool"):
            raise MachineError("this device runs one sequence at a time; use another to serve")
        self.context = context
        smallest = executor.new_pool(1)
        page, page_bytes = smallest.page_tokens, smallest.page_bytes
        fixed_bytes = executor.new_state(context, smallest).fixed_bytes
        self.layout = Layout(key, context, page, page_bytes, fixed_bytes)
        most = self._pages(context) * page
        free = psutil.virtual_memory().available
        self.plan = plan_room(free, sequences, most, -(-page_bytes // page), fixed_bytes, prefix_bytes)
        self.pool = executor.new_pool(self.plan.pool_tokens)
        self.idle = [executor.new_state(context, self.pool) for _ in range(sequences)]

    def fits(self, request: Request, running: Iterable[Running]) -> bool:
        """Whether there are pages for all that those running and this one may come to need."""
        taken: set[int] = set()
        growth = self._most_pages(request)
        for run in running:
            taken.update(run.state.pages.ids)
            growth += self._most_pages(run.request) - len(run.state.pages.ids)
        return bool(len(taken) + growth <= self.pool.pages.count)

    def figures(self) -> dict[str, int]:
        """Tokens and bytes of the pages in use, of sequences and checkpoints."""
        pages = self.pool.pages
        used = pages.count - pages.free
        return {
            "tokens": used * self.pool.page_tokens,
            "bytes": used * self.pool.page_bytes,
            "budget": pages.count * self.pool.page_bytes,
        }

    def _most_pages(self, request: Request) -> int:
        return self._pages(min(len(request.prompt) + request.max_tokens, self.context))

    def _pages(self, tokens: int) -> int:
        """For so many tokens, the columns that a step tries beyond them, and copies."""
        return -(-(tokens + STEP_COLUMNS) // self.layout.page_tokens) + SPARE_PAGES
