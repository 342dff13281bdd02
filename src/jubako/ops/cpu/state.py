"""What the CPU remembers of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ... import _cpu
from ...arch.config import Config
from .weights import Attention, Gdn, Network


@dataclass
class CpuState:
    """One sequence's state.

    position        tokens read
    history         the last tokens read, as many as an n-gram looks back on
    layers          `_cpu.GdnState` or `_cpu.AttentionState` of each layer
    ngram           `_cpu.NgramState`, None without an n-gram table
    draft           the draft layer's `_cpu.AttentionState`, None without one
    draft_position  tokens the draft layer has read

    After a revocable call the state is open: `keep` takes back all but the first of its tokens. Nothing is copied or
    computed for that: attention states and the rings of past columns are found by position, recurrent ones hold the
    call's tokens as factors that the next call applies (`GdnState.settle` does it at once).
    """

    context: int
    layers: list[_cpu.GdnState | _cpu.AttentionState]
    ngram: _cpu.NgramState | None
    draft: _cpu.AttentionState | None
    looks_back: int  # length of history
    position: int = 0
    draft_position: int = 0
    history: list[int] = field(default_factory=list)
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
        self.history = self._last(self._before, self._open)
        for state in self.layers:
            if isinstance(state, _cpu.GdnState):
                state.keep(count)
            else:
                state.truncate(self.position)
        if self.ngram is not None:
            self.ngram.truncate(self.position)

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
        """Forget everything, keeping the address space."""
        for state in (*self.layers, self.ngram, self.draft):
            if state is not None:
                state.reset()
        self.position = self.draft_position = 0
        self.history, self._before, self._open = [], [], []


def new_state(network: Network, context: int, kv_bits: int) -> CpuState:
    """An empty state. Raises MemoryError when the system refuses the address space."""
    config = network.config
    return CpuState(
        context,
        layers=[_mixer_state(config, layer.mixer, context, kv_bits) for layer in network.layers],
        ngram=next((layer.ngram.kernel.new_state() for layer in network.layers if layer.ngram), None),
        draft=_attention_state(config, network.draft.layer.mixer, context, kv_bits) if network.draft else None,
        looks_back=config.ngram.size - 1 if config.ngram else 0,
    )


def _mixer_state(
    config: Config, mixer: Gdn | Attention, context: int, kv_bits: int
) -> _cpu.GdnState | _cpu.AttentionState:
    if isinstance(mixer, Gdn):
        return mixer.kernel.new_state()
    return _attention_state(config, mixer, context, kv_bits)


def _attention_state(config: Config, mixer: Gdn | Attention, context: int, kv_bits: int) -> _cpu.AttentionState:
    assert isinstance(mixer, Attention)
    return _cpu.AttentionState(context, config.kv_heads, config.head_dim, kv_bits, mixer.ratio, config.index_dim)
