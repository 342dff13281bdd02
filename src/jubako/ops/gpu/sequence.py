"""One sequence on a GPU: its slot, its pages, and what of its last step can still be taken back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..pages import SequencePages
from .peer_pool import CardsPool
from .state import StatePool


class GpuPages(SequencePages):
    """The pages of the sequence in one slot."""

    pool: StatePool | CardsPool

    def __init__(self, pool: StatePool | CardsPool, slot: int) -> None:
        super().__init__(pool)
        self.slot = slot
        if pool.homes is not None:
            pool.homes.sequences[slot] = self
        self._rows = [table[slot] for table in pool.tables]

    def own(self, start: int, end: int) -> None:
        """See `SequencePages.own`."""
        super().own(start, end)
        if self.pool.homes is not None:
            self.pool.homes.move_out()

    def _place(self, start: int, pages: Sequence[int]) -> None:
        ids = torch.tensor(list(pages), dtype=torch.int32)
        for row in self._rows:
            row[start : start + len(ids)] = ids.to(row.device)
        if self.pool.homes is not None:
            self.pool.homes.place(self.slot, start, pages)


class GpuState:
    """One sequence: its slot, its pages, how far it has read, and what of its last step is still undecided.

    After a step the state is open: `keep(n)` accepts the first n of its columns, in constant time.
    """

    slot = -1  # nothing to give back while there is none

    def __init__(self, pool: StatePool | CardsPool, context: int) -> None:
        self.pool = pool
        self.context = context
        self.slot = pool.take_slot()
        self.pages = GpuPages(pool, self.slot)
        self.position = 0
        self.draft_position = 0
        self.pending = 0  # columns kept of the last step, not in the recurrent memory yet
        self.parity = 0  # half of the factor buffers that the next step writes
        self.carried: list[int] = []  # tokens whose streams wait for the draft layer, from draft_position on
        self.open = 0  # columns of the last step that can still be taken back

    @property
    def writes_from(self) -> int:
        """The first cell that may still be written to."""
        return min(self.position, self.draft_position) if self.pool.drafts else self.position

    def reserve(self, end: int) -> None:
        """Make the cells from the first that may still be written to up to `end` this sequence's own."""
        self.pages.own(self.writes_from, end)

    def lacks(self, end: int) -> int:
        """Pages that `reserve(end)` would take."""
        return self.pages.lacks(self.writes_from, end)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of `Saved.fixed`."""
        return self.pool.fixed_bytes(self.slot)

    def reset(self) -> None:
        """Forget everything; the pages go back to the pool, the slot stays."""
        self.pages.release()
        self.pool.clear_slot(self.slot)
        self.position = self.draft_position = 0
        self.pending = self.open = 0
        self.carried = []

    def opened(self, ids: Sequence[int]) -> None:
        """A step has read `ids` at the end of this sequence."""
        self.position += len(ids)
        self.pending = self.open = len(ids)
        self.parity ^= 1
        if self.pool.drafts:
            self.carried += ids

    def read(self, tokens: int) -> None:
        """A piece of a prompt was read: nothing can be taken back."""
        self.position += tokens
        self.pending = self.open = 0

    def keep(self, n: int) -> None:
        """Accept the first n columns of the last step; everything forgets the others. May be called again with less."""
        assert 1 <= n <= self.open, "only tokens of the last step can be taken back"
        self.position -= self.open - n
        if self.open > n and self.pool.drafts:
            del self.carried[n - self.open :]
        self.pending = self.open = n

    def close(self) -> None:
        """Give slot and pages back."""
        if self.slot >= 0:
            self.pages.release()
            self.pool.give_slot(self.slot)
            self.slot = -1

    def __del__(self) -> None:
        self.close()
