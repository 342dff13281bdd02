"""What the CPU remembers of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ... import _cpu
from ..pages import Saved
from .kv import CpuPages, KvPool
from .weights import Attention, Gdn, Network

CARRY = 32  # tokens the draft layer may lag behind; two steps' worth


@dataclass
class CpuState:
    """One sequence's state.

    position        tokens read
    history         the last tokens read, as many as an n-gram looks back on
    layers          `_cpu.GdnState` or `_cpu.AttentionState` of each layer
    ngram           `_cpu.NgramState`, None without an n-gram table
    draft           the draft layer's `_cpu.AttentionState`, None without one
    draft_position  tokens the draft layer has read
    carry           what the trunk gave for the tokens it has not read yet: float32 [CARRY, streams, hidden], of which
                    the first len(carry_ids) rows count; None without a draft layer
    carry_ids       those tokens: draft_position + len(carry_ids) == position

    After a revocable call the state is open: `keep` takes back all but the first of its tokens. Nothing is copied or
    computed for that: attention states and the rings of past columns are found by position, recurrent ones hold the
    call's tokens as factors that the next call applies (`GdnState.settle` does it at once).
    """

    context: int
    layers: list[_cpu.GdnState | _cpu.AttentionState]
    ngram: _cpu.NgramState | None
    draft: _cpu.AttentionState | None
    carry: np.ndarray | None
    looks_back: int  # length of history
    pages: CpuPages | None = None  # None: memory of its own
    position: int = 0
    draft_position: int = 0
    history: list[int] = field(default_factory=list)
    carry_ids: list[int] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)  # history before the open tokens
    _open: list[int] = field(default_factory=list)  # tokens of the last revocable call

    def advance(self, ids: Sequence[int], revocable: bool = False) -> None:
        """Count `ids` as read."""
        self.position += len(ids)
        self._before, self._open = self.history, list(ids) if revocable else []
        self.history = self._last(self.history, ids)

    def keep(self, count: int) -> None:
        """Accept the first `count` (at least one) of the tokens read by the last revocable call, forget the others."""
        assert 1 <= count <= len(self._open), "only tokens of the last step can be taken back"
        forgotten = len(self._open) - count
        if forgotten == 0:
            return
        self.position -= forgotten
        del self._open[count:]
        if self.carry is not None:
            del self.carry_ids[-forgotten:]
        self.history = self._last(self._before, self._open)
        for state in self.layers:
            if isinstance(state, _cpu.GdnState):
                state.keep(count)
            else:
                state.truncate(self.position)
        if self.ngram is not None:
            self.ngram.truncate(self.position)

    def reserve(self, end: int) -> None:
        """Make the cells from the first that may still be written up to `end` this sequence's own."""
        if self.pages is not None:
            self.pages.own(self._writes_from(), end)

    def lacks(self, end: int) -> int:
        """Pages that `reserve(end)` would take."""
        return self.pages.lacks(self._writes_from(), end) if self.pages is not None else 0

    def _writes_from(self) -> int:
        return self.position if self.draft is None else min(self.position, self.draft_position)

    def save(self) -> Saved:
        """All of it, for `resume`. Pages are held, not copied: give them back with `pages.release`."""
        assert self.pages is not None, "a state with memory of its own can't be shared"
        self.settle()
        fixed = np.concatenate([array.reshape(-1).view(np.uint8) for array in self._fixed()])
        ids = self.pages.holding(self.position)
        return Saved(self.position, self._writes_from(), fixed, ids)

    def resume(self, saved: Saved, ids: Sequence[int]) -> None:
        """Become what was saved after the tokens `ids`."""
        assert self.pages is not None and len(ids) == saved.position
        self.reset()
        self.pages.share(saved.pages)
        start = 0
        for array in self._fixed():
            array.reshape(-1).view(np.uint8)[:] = saved.fixed[start : start + array.nbytes]
            start += array.nbytes
        self.position = saved.position
        for state in (*self.layers, self.ngram):
            if isinstance(state, _cpu.AttentionState):
                state.resume(self.position)
            elif state is not None:
                state.position = self.position
        if self.draft is not None:
            self.draft_position = saved.draft_position
            self.draft.resume(self.draft_position)
            self.carry_ids = [int(id) for id in ids[self.draft_position :]]
        self.history = self._last([], ids)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of `Saved.fixed`."""
        return sum(array.nbytes for array in self._fixed())

    def _fixed(self) -> list[np.ndarray]:
        """What has the same size however long the sequence is."""
        arrays: list[np.ndarray] = []
        for state in (*self.layers, self.draft):
            if isinstance(state, _cpu.GdnState):
                arrays += [state.memory, state.conv]
            elif state is not None:
                arrays.append(state.raw_keys)
        if self.ngram is not None:
            arrays.append(self.ngram.past)
        if self.carry is not None:
            arrays.append(self.carry)
        return arrays

    def settle(self) -> None:
        """Make what was accepted real: recurrent states hold exactly `position` tokens, and nothing is open."""
        self._open = []
        for state in self.layers:
            if isinstance(state, _cpu.GdnState):
                state.settle()

    def _last(self, history: Sequence[int], ids: Sequence[int]) -> list[int]:
        if not self.looks_back:
            return []
        return [*history, *(int(id) for id in ids[-self.looks_back :])][-self.looks_back :]

    def reset(self) -> None:
        """Forget everything, keeping the address space; pages go back to their pool."""
        if self.pages is not None:
            self.pages.release()
        for state in (*self.layers, self.ngram, self.draft):
            if state is not None:
                state.reset()
        self.position = self.draft_position = 0
        self.history, self._before, self._open, self.carry_ids = [], [], [], []


def new_state(network: Network, context: int, kv_bits: int, pool: KvPool | None = None) -> CpuState:
    """An empty state, its keys and values in `pool`. Raises MemoryError when the system refuses the address space."""
    config = network.config
    pages = CpuPages(pool) if pool else None
    shared = iter(pool.layers) if pool else None

    def mixer_state(mixer: Gdn | Attention) -> _cpu.GdnState | _cpu.AttentionState:
        if isinstance(mixer, Gdn):
            return mixer.kernel.new_state()
        if pages is not None and shared is not None:
            return _cpu.AttentionState(next(shared), pages.table)
        return _cpu.AttentionState(context, config.kv_heads, config.head_dim, kv_bits, mixer.ratio, config.index_dim)

    return CpuState(
        context,
        layers=[mixer_state(layer.mixer) for layer in network.layers],
        ngram=next((layer.ngram.kernel.new_state() for layer in network.layers if layer.ngram), None),
        draft=_attention(mixer_state(network.draft.layer.mixer)) if network.draft else None,
        carry=np.empty((CARRY, config.streams, config.hidden), np.float32) if network.draft else None,
        looks_back=config.ngram.size - 1 if config.ngram else 0,
        pages=pages,
    )


def _attention(state: _cpu.GdnState | _cpu.AttentionState) -> _cpu.AttentionState:
    assert isinstance(state, _cpu.AttentionState), "the draft layer is an attention layer"
    return state
