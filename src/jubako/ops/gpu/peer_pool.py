"""`CardsPool`: the memory of sequences whose layers lie on several cards, as one pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch

from .state import AttentionMemory, GdnMemory, StatePool


class CardsPool:
    """One `StatePool` a card, in the order of the layers. A slot or page has the same number on each.

    The last one keeps count. A page's bytes, in main memory, are those of the cards one after the other.
    """

    homes = None  # all keys and values lie in video memory

    def __init__(self, pools: Sequence[StatePool]) -> None:
        last = pools[-1]
        self.pools, self._last = pools, last
        self.page_tokens, self.page_count, self.pages = last.page_tokens, last.page_count, last.pages
        self.slots, self.context, self.drafts = last.slots, last.context, last.drafts
        self.page_bytes = sum(pool.page_bytes for pool in pools)

    @property
    def layers(self) -> list[GdnMemory | AttentionMemory]:
        return list(chain.from_iterable(pool.layers for pool in self.pools))

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """See `StatePool.tables`."""
        return tuple(pool.table for pool in self.pools)

    def nbytes(self) -> int:
        """Bytes on all cards."""
        return sum(pool.nbytes() for pool in self.pools)

    def fixed_bytes(self, slot: int) -> int:
        """See `StatePool.fixed_bytes`."""
        return sum(pool.fixed_bytes(slot) for pool in self.pools)

    def read_fixed(self, slot: int, out: np.ndarray) -> Callable[[], None]:
        """See `StatePool.read_fixed`."""
        jobs, start = [], 0
        for pool in self.pools:
            end = start + pool.fixed_bytes(slot)
            jobs.append(pool.read_fixed(slot, out[start:end]))
            start = end

        def bring() -> None:
            for job in jobs:
                job()

        return bring

    def write_fixed(self, slot: int, data: np.ndarray) -> None:
        """The inverse."""
        start = 0
        for pool in self.pools:
            size = pool.fixed_bytes(slot)
            pool.write_fixed(slot, data[start : start + size])
            start += size

    def write_tokens(self, slot: int, ids: torch.Tensor) -> None:
        """See `StatePool.write_tokens`."""
        for pool in self.pools:
            pool.write_tokens(slot, ids)

    def has_slot(self) -> bool:
        """Whether a sequence more has room."""
        return self._last.has_slot()

    def take_slot(self) -> int:
        """See `StatePool.take_slot`."""
        slot = self._last.take_slot()
        self.clear_slot(slot)
        return slot

    def clear_slot(self, slot: int) -> None:
        """Put a slot's recurrent memory at zero."""
        for pool in self.pools:
            pool.clear_slot(slot)

    def give_slot(self, slot: int) -> None:
        self._last.give_slot(slot)

    def read(self, pages: Sequence[int]) -> np.ndarray:
        """What these pages hold: uint8 [pages, page_bytes]."""
        return np.concatenate([pool.read(pages) for pool in self.pools], axis=1)

    def write(self, pages: Sequence[int], data: np.ndarray) -> None:
        """The inverse of `read`."""
        start = 0
        for pool in self.pools:
            pool.write(pages, np.ascontiguousarray(data[:, start : start + pool.page_bytes]))
            start += pool.page_bytes

    def bytes_in_ram(self, pages: int) -> int:
        """None."""
        return 0

    def copy(self, page: int, to: int) -> None:
        """Let page `to` hold what `page` holds."""
        for pool in self.pools:
            pool.copy(page, to)
