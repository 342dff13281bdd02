"""Memory for several sequences and their checkpoints, planned before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import MachineError
from ..ops.pages import PagePool, Saved
from .executor import STEP_COLUMNS, Executor

CHECKPOINT_SHARE = 8  # one part in so many of the free memory is for checkpoints
CHECKPOINT_MOST = 8 << 30  # bytes, unless asked for
SPARE_PAGES = 2  # that a sequence may replace by copies while its own are shared


@dataclass(frozen=True)
class SharedMemory:
    """What an executor lays out for several sequences: their pool and empty states.

    prefix_bytes  budget of the checkpoints
    total         bytes of everything
    """

    pool: PagePool
    states: list[Any]
    prefix_bytes: int
    total: int


@runtime_checkable
class SharingExecutor(Executor, Protocol):
    """An executor that runs several sequences on shared pages, and saves their states."""

    layout: str
    """What saved states depend on beside the model: device and precision."""
    video_bytes: int
    """Bytes of the card that holds weights and pages; 0 where main memory does."""
    experts_in: Mapping[str, int] | None
    """Bytes of routed experts by box ("VRAM", "RAM", "SSD"), copies too; None: all where the other weights are."""

    def share_memory(self, sequences: int, context: int, prefix_bytes: int | None) -> SharedMemory:
        """Memory for so many sequences of `context` tokens and their checkpoints (None: a share of what is free).

        Raises MachineError if that does not fit.
        """

    def save(self, state: Any) -> Saved:
        """All of one of the shared states. Its pages are held, not copied; `pages.release` gives them back."""

    def resume(self, state: Any, saved: Saved, ids: Sequence[int] | np.ndarray) -> None:
        """Make a shared state what was saved after the tokens `ids`."""


@dataclass(frozen=True)
class Plan:
    """pool_tokens: room for keys and values. prefix_bytes: budget of the checkpoints. total: bytes of everything."""

    pool_tokens: int
    prefix_bytes: int
    total: int


def pages_for(tokens: int, page: int) -> int:
    """Pages of so many tokens, of the columns that a step tries beyond them, and of copies."""
    return -(-(tokens + STEP_COLUMNS) // page) + SPARE_PAGES


def prefix_budget(free: int, wanted: int | None) -> int:
    """Bytes for checkpoints of `free` ones: what is wanted, or a share."""
    return min(free // CHECKPOINT_SHARE, CHECKPOINT_MOST) if wanted is None else wanted


def plan_memory(
    free: int, sequences: int, context: int, token_bytes: int, fixed_bytes: int, prefix_bytes: int | None
) -> Plan:
    """What `free` bytes hold: a whole context for each sequence if they fit, else as much as half of them give.

    token_bytes of keys and values, fixed_bytes of a sequence's other state. Memory is committed as it fills, but must
    be there. Raises MachineError where not even one context fits.
    """
    prefix = prefix_budget(free, prefix_bytes)
    states = sequences * fixed_bytes
    running = max(context, min(sequences * context, free // 2 // token_bytes))
    total = running * token_bytes + states + prefix
    if total > free:
        raise MachineError(
            f"a context of {context} tokens needs {context * token_bytes / 1e9:.2f} GB for keys and values, "
            f"{sequences} sequences {states / 1e9:.2f} GB for their states, checkpoints {prefix / 1e9:.2f} GB, "
            f"and {free / 1e9:.2f} GB of memory are free; ask for a smaller context or fewer sequences"
        )
    return Plan(running + prefix // token_bytes, prefix, total)
