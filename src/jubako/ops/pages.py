"""Who holds which pages of a pool, on any device.

A page keeps the keys and values of a run of tokens in all attention layers. Sequences that begin alike, and saved
states, hold the same pages; only a page with a single holder is written to.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import MachineError


class Pages:
    """Counts the holders of `count` pages. The lowest free page is taken first, so that little memory is touched."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders = [0] * count
        self._returned: list[tuple[int, int]] = []  # a heap of pages that were taken once, after their rank
        self._fresh = 0  # pages from here on never were

    @property
    def free(self) -> int:
        return self.count - self._fresh + len(self._returned)

    @property
    def touched(self) -> int:
        """The most pages that were in use at once: what the pool has taken of the machine's memory."""
        return self._fresh

    def take(self) -> int:
        """A free page, held once. Raises MachineError if there is none."""
        if self._returned:
            _, page = heapq.heappop(self._returned)
        elif self._fresh < self.count:
            page = self._fresh
            self._fresh += 1
        else:
            raise MachineError(f"all {self.count} pages for keys and values are in use")
        self._holders[page] = 1
        return page

    def hold(self, pages: Iterable[int]) -> None:
        """One more holder for each of `pages`."""
        for page in pages:
            assert self._holders[page] > 0, "only a page in use can be shared"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each of `pages`; those without any are free."""
        for page in pages:
            assert self._holders[page] > 0, "a page was given back twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                heapq.heappush(self._returned, (self.rank(page), page))

    def rank(self, page: int) -> int:
        """Free pages are taken by rising rank; that of a page does not change while it is free."""
        return page

    def holders(self, page: int) -> int:
        return self._holders[page]


class PagePool(Protocol):
    """A device's pages, as states and saved states see them.

    page_tokens  tokens of a page
    page_bytes   bytes of a page in all layers
    """

    pages: Pages
    page_tokens: int
    page_bytes: int

    def read(self, pages: Sequence[int]) -> np.ndarray:
        """What these pages hold: uint8 [pages, page_bytes]."""

    def write(self, pages: Sequence[int], data: np.ndarray) -> None:
        """The inverse."""

    def copy(self, page: int, to: int) -> None:
        """Let page `to` hold what `page` holds."""

    def bytes_in_ram(self, pages: int) -> int:
        """Of so many pages in use, what a card's pool leaves to main memory; 0 where that has all."""


class SequencePages:
    """The pages of one sequence in the order of its tokens. A device tells its kernels of them in `_place`."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.ids: list[int] = []

    def own(self, start: int, end: int) -> None:
        """Make the cells [start, end) writable: shared pages are replaced by a copy, missing ones taken."""
        pages, size = self.pool.pages, self.pool.page_tokens
        last = -(-end // size)
        for place in range(start // size, min(last, len(self.ids))):
            shared = self.ids[place]
            if pages.holders(shared) > 1:
                self.ids[place] = own = pages.take()
                self.pool.copy(shared, own)
                pages.release([shared])
                self._place(place, [own])
        if last > len(self.ids):
            self._add([pages.take() for _ in range(last - len(self.ids))])

    def lacks(self, start: int, end: int) -> int:
        """Pages that `own` would take."""
        size = self.pool.page_tokens
        known = self.ids[start // size : -(-end // size)]
        shared = sum(self.pool.pages.holders(page) > 1 for page in known)
        return shared + max(0, -(-end // size) - len(self.ids))

    def holding(self, tokens: int) -> tuple[int, ...]:
        """The pages of the first `tokens` cells, with one more holder."""
        ids = tuple(self.ids[: -(-tokens // self.pool.page_tokens)])
        self.pool.pages.hold(ids)
        return ids

    def share(self, ids: Sequence[int]) -> None:
        """Have these pages, held by somebody else too."""
        assert not self.ids
        self.pool.pages.hold(ids)
        self._add(ids)

    def release(self) -> None:
        """Give all pages back."""
        self.pool.pages.release(self.ids)
        self.ids = []

    def _add(self, pages: Sequence[int]) -> None:
        start = len(self.ids)
        self.ids += pages
        self._place(start, pages)

    def _place(self, start: int, pages: Sequence[int]) -> None:
        """Let the kernels find `pages` at the places from `start` on."""


@dataclass(frozen=True, eq=False)
class Saved:
    """A sequence's whole state after `position` tokens, enough to read on from there.

    fixed           uint8: recurrent states, past columns, unfinished index blocks, what the draft layer carries
    pages           held pages of the pool with the keys and values
    draft_position  tokens the draft layer has read; position where there is none
    ready           done when `fixed` is filled, if a thread is still at it
    """

    position: int
    draft_position: int
    fixed: np.ndarray
    pages: tuple[int, ...]
    ready: Future[None] | None = None

    def content(self) -> np.ndarray:
        """`fixed`, once it is filled."""
        if self.ready is not None:
            self.ready.result()
        return self.fixed
