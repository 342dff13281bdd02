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

    Attention states forget their last tokens in constant time (`truncate`). Recurrent ones can't: to go back, copy
    `GdnState.memory`, `.conv` and `.position`, `NgramState.past` and `.position` beforehand, and write them back.
    """

    context: int
    layers: list[_cpu.GdnState | _cpu.AttentionState]
    ngram: _cpu.NgramState | None
    draft: _cpu.AttentionState | None
    keep: int  # length of history
    position: int = 0
    draft_position: int = 0
    history: list[int] = field(default_factory=list)

    def advance(self, ids: Sequence[int]) -> None:
        """Count `ids` as read."""
        self.position += len(ids)
        self.history = [*self.history, *(int(id) for id in ids[-self.keep :])][-self.keep :] if self.keep else []

    def reset(self) -> None:
        """Forget everything, keeping the address space."""
        for state in (*self.layers, self.ngram, self.draft):
            if state is not None:
                state.reset()
        self.position = self.draft_position = 0
        self.history = []


def new_state(network: Network, context: int, kv_bits: int) -> CpuState:
    """An empty state. Raises MemoryError when the system refuses the address space."""
    config = network.config
    return CpuState(
        context,
        layers=[_mixer_state(config, layer.mixer, context, kv_bits) for layer in network.layers],
        ngram=next((layer.ngram.kernel.new_state() for layer in network.layers if layer.ngram), None),
        draft=_attention_state(config, network.draft.layer.mixer, context, kv_bits) if network.draft else None,
        keep=config.ngram.size - 1 if config.ngram else 0,
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
