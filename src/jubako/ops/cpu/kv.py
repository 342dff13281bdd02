"""Keys and values of many sequences in one pool of pages, planned at start."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from ... import _cpu
from ..pages import Pages
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

    def copy(self, page: int) -> int:
        """A new page with the same contents."""
        twin = self.pages.take()
        for part in self._parts:
            part[twin] = part[page]
        return twin


class SequencePages:
    """The pages of one sequence; `table` is what its attention states see of them."""

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.ids: list[int] = []
        self.table = _cpu.PageTable(pool.pages.count)

    def own(self, start: int, end: int) -> None:
        """Make the cells [start, end) writable: pages that are missing are taken, shared ones replaced by a copy."""
        pages, size = self.pool.pages, self.pool.page_tokens
        for place in range(start // size, -(-end // size)):
            if place == len(self.ids):
                self._set(place, pages.take())
            elif pages.holders(self.ids[place]) > 1:
                shared = self.ids[place]
                self._set(place, self.pool.copy(shared))
                pages.release([shared])

    def lacks(self, start: int, end: int) -> int:
        """Pages that `own` would take."""
        places = range(start // self.pool.page_tokens, -(-end // self.pool.page_tokens))
        return sum(place >= len(self.ids) or self.pool.pages.holders(self.ids[place]) > 1 for place in places)

    def holding(self, tokens: int) -> tuple[int, ...]:
        """The pages of the first `tokens` cells, with one more holder."""
        ids = tuple(self.ids[: -(-tokens // self.pool.page_tokens)])
        self.pool.pages.hold(ids)
        return ids

    def share(self, ids: tuple[int, ...]) -> None:
        """Have these pages, held by somebody else too."""
        assert not self.ids
        self.pool.pages.hold(ids)
        for place, page in enumerate(ids):
            self._set(place, page)

    def release(self) -> None:
        """Give all pages back."""
        self.pool.pages.release(self.ids)
        self.ids = []
        self.table.truncate(0)

    def _set(self, place: int, page: int) -> None:
        self.ids[place : place + 1] = [page]
        self.table.set(place, page)


def attention_layers(network: Network) -> list[Attention]:
    """The attention mixers in the order of the layers, the draft layer's last."""
    layers = [*network.layers, *([network.draft.layer] if network.draft else [])]
    return [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
