"""Keys and values of many sequences in one pool of pages, planned at start."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from ... import _cpu
from ..pages import Pages, SequencePages
from .weights import Attention, Network


class KvPool:
    """Room for `tokens` tokens of all attention layers, the draft layer's last. Memory is committed as pages fill.

    A page's bytes are those of the layers one after the other, each keys and values, then pooled index keys.
    """

    def __init__(self, network: Network, tokens: int, kv_bits: int) -> None:
        config = network.config
        mixers = attention_layers(network)
        self.page_tokens = lcm(*(_cpu.page_tokens(mixer.ratio) for mixer in mixers))
        self.pages = Pages(max(1, -(-tokens // self.page_tokens)))
        self.layers = [
            _cpu.AttentionPages(
                self.pages.count,
                self.page_tokens,
                config.kv_heads,
                config.head_dim,
                kv_bits,
                mixer.ratio,
                config.index_dim if mixer.ratio else 0,
            )
            for mixer in mixers
        ]
        self._parts = [part for layer in self.layers for part in (layer.cache, layer.pooled)]
        self.page_bytes = sum(part.shape[1] for part in self._parts)

    def read(self, pages: Sequence[int]) -> np.ndarray:
        """What these pages hold: uint8 [pages, page_bytes]."""
        return np.concatenate([part[list(pages)] for part in self._parts], axis=1)

    def write(self, pages: Sequence[int], data: np.ndarray) -> None:
        """The inverse of `read`."""
        start = 0
        for part in self._parts:
            part[list(pages)] = data[:, start : start + part.shape[1]]
            start += part.shape[1]

    def bytes_in_ram(self, pages: int) -> int:
        """None is left to it: that is where all of them are."""
        return 0

    def copy(self, page: int, to: int) -> None:
        """Let page `to` hold the same."""
        for part in self._parts:
            part[to] = part[page]


class CpuPages(SequencePages):
    """The pages of one sequence; `table` is what its attention states see of them."""

    def __init__(self, pool: KvPool) -> None:
        super().__init__(pool)
        self.table = _cpu.PageTable(pool.pages.count)

    def release(self) -> None:
        super().release()
        self.table.truncate(0)

    def _place(self, start: int, pages: Sequence[int]) -> None:
        for place, page in enumerate(pages, start):
            self.table.set(place, page)


def attention_layers(network: Network) -> list[Attention]:
    """The attention mixers in the order of the layers, the draft layer's last."""
    layers = [*network.layers, *([network.draft.layer] if network.draft else [])]
    return [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
