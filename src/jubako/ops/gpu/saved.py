"""A slot's state outside of its pages, to and from main memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from ..pages import Saved
from .gdn import settle
from .sequence import GpuState
from .state import GdnMemory

_movers = ThreadPoolExecutor(1, "save")


def settle_state(state: GpuState) -> None:
    """Enter the kept columns of the last step into the recurrent memory; nothing can be taken back after it."""
    if state.pending:
        for memory in state.pool.layers:
            if isinstance(memory, GdnMemory):
                with torch.cuda.device_of(memory.memory):
                    settle(memory, state.slot, state.pending, state.parity)
    state.pending = state.open = 0


def save(state: GpuState) -> Saved:
    """See `engine.plan.SharingExecutor.save`. A thread brings the recurrent state to main memory."""
    settle_state(state)
    fixed = np.empty(state.fixed_bytes, np.uint8)
    ready = _movers.submit(state.pool.read_fixed(state.slot, fixed))
    return Saved(state.position, state.writes_from, fixed, state.pages.holding(state.position), ready)


def resume(state: GpuState, saved: Saved, ids: Sequence[int] | np.ndarray) -> None:
    """See `engine.plan.SharingExecutor.resume`."""
    pool = state.pool
    assert len(ids) == saved.position
    state.reset()
    state.pages.share(saved.pages)
    pool.write_fixed(state.slot, saved.content())
    read = torch.from_numpy(np.array(ids, np.int32))
    pool.write_tokens(state.slot, read)
    state.position = saved.position
    if pool.drafts:
        state.draft_position = saved.draft_position
        state.carried = read[saved.draft_position :].tolist()
