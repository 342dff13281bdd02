"""Where the keys and values of pages lie: the newest in video memory, the others in main memory, read in place.

    page   its number in tables and saved states; its pooled index keys lie in video memory, whatever its home
    home   below `near`: the place of its keys and values in video memory; from there on: one in pinned main memory

Every page has one home, and two may exchange theirs. A page that is taken gets one in video memory: a free one, or that
of the page that has had it longest, whose keys and values are copied out, in the order of what the device is told to
do. Kernels add a distance to places in main memory, so where cells lie changes no bit of what is computed of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from ..pages import Pages
from .pinned import room

if TYPE_CHECKING:
    from .columns import Columns
    from .sequence import GpuPages


class HomedPages(Pages):
    """Pages with a home each. Page 0 keeps its own."""

    def __init__(self, count: int, near: int) -> None:
        """near: homes in video memory."""
        super().__init__(count)
        self.near = near
        self.homes = list(range(count))
        self._newest: dict[int, None] = {}  # held pages with a home in video memory, that which came first first
        self._moved: dict[int, int] = {}  # homes in main memory, and where what belongs there lies until `moves`
        self.lock = RLock()  # sessions are written by a thread of their own

    def rank(self, page: int) -> int:
        """See `Pages.rank`: free homes in video memory come first."""
        return self.homes[page]

    def take(self) -> int:
        """See `Pages.take`. Whoever takes pages has `Homes.move_out` called before anything is read or written."""
        with self.lock:
            page, homes = super().take(), self.homes
            if homes[page] >= self.near and self._newest:
                oldest = next(iter(self._newest))
                del self._newest[oldest]
                self._moved[homes[page]] = homes[oldest]
                homes[page], homes[oldest] = homes[oldest], homes[page]
            if page and homes[page] < self.near:
                self._newest[page] = None
            return page

    def release(self, pages: Iterable[int]) -> None:
        """See `Pages.release`."""
        pages = list(pages)
        super().release(pages)
        for page in pages:
            if not self.holders(page):
                self._newest.pop(page, None)

    def moves(self) -> list[tuple[int, int]]:
        """(from, to): what is to be copied to main memory, in the order of `to`; each move is given once."""
        moves = [(start, to) for to, start in sorted(self._moved.items())]
        self._moved = {}
        return moves


@dataclass(frozen=True)
class Reach:
    """How kernels find cells by their rows: those from row `first` on lie so many elements further than they would."""

    first: int = 0
    codes: int = 0
    scales: int = 0


@dataclass(frozen=True, eq=False)
class FarCells:
    """One attention layer's keys and values in main memory.

    codes, scales: [pages, kv_heads, 2, 64, …] as on the card; in_place: how they are reached; staged: how they are once
    they were brought to video memory for a moment.
    """

    homes: Homes
    codes: torch.Tensor
    scales: torch.Tensor
    in_place: Reach
    staged: Reach

    def reach(self, columns: Columns, cells: int) -> Reach:
        """How kernels reach them whose columns read so many cells each. A long piece of a prompt would read main memory
        many times over, so what its sequence has there is brought to video memory before."""
        if columns.parts is not None:
            return self.in_place
        homes, runs = self.homes, self.homes.runs(columns.slot)
        there = sum(end - start for start, end in runs) * self.codes.shape[3]
        if columns.tokens * cells <= there:
            return self.in_place
        for start, end in runs:
            homes.staged_codes[start:end].copy_(self.codes[start:end], non_blocking=True)
            homes.staged_scales[start:end].copy_(self.scales[start:end], non_blocking=True)
        return self.staged


@dataclass(frozen=True, eq=False)
class Paged:
    """A part of what a layer keeps by pages: near [pages, …] on the device; where pages have homes, far [pages, …]."""

    near: torch.Tensor
    far: torch.Tensor | None = None
    homes: HomedPages | None = None

    def read(self, pages: Sequence[int]) -> torch.Tensor:
        """What pages hold: [n, …] on the device."""
        near, far = self._split(pages)
        out = self.near[torch.tensor([place for _, place in near], dtype=torch.int64, device=self.near.device)]
        if not far:
            return out
        assert self.far is not None
        both = torch.empty(len(pages), *self.near.shape[1:], dtype=self.near.dtype, device=self.near.device)
        both[[index for index, _ in near]] = out
        both[[index for index, _ in far]] = self.far[[place for _, place in far]].to(both.device)
        return both

    def write(self, pages: Sequence[int], rows: torch.Tensor) -> None:
        """The inverse of `read`."""
        near, far = self._split(pages)
        self.near[[place for _, place in near]] = rows[[index for index, _ in near]]
        if far:
            assert self.far is not None
            self.far[[place for _, place in far]] = rows[[index for index, _ in far]].cpu()

    def copy(self, page: int, to: int) -> None:
        """Let page `to` hold what `page` holds."""
        if self.far is None:
            self.near[to].copy_(self.near[page])
        else:
            self.write([to], self.read([page]))

    def _split(self, pages: Sequence[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(index into pages, place) of those near and of those far.

        If there are any of the latter, what the device was told to do before is done: the host will read or write them.
        """
        places = list(enumerate(pages if self.homes is None else [self.homes.homes[page] for page in pages]))
        if self.far is None:
            return places, []
        count = len(self.near)
        far = [(index, place - count) for index, place in places if place >= count]
        if far and self.near.device.type == "cuda":
            torch.cuda.current_stream(self.near.device).synchronize()
        return [(index, place) for index, place in places if place < count], far


class Homes:
    """The homes of a pool's pages, its layers' memory for them, and memory that a layer of a prompt is staged in.

    table  int32 [slots, pages of a context]: homes, as the pool's table has pages
    """

    def __init__(self, pages: HomedPages, table: torch.Tensor) -> None:
        self.pages, self.table = pages, torch.zeros_like(table)
        self.sequences: WeakValueDictionary[int, GpuPages] = WeakValueDictionary()
        self.staged_codes = self.staged_scales = torch.empty(0, device=table.device)
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []  # codes and scales of layers, near and far

    def far(self, codes: torch.Tensor, scales: torch.Tensor) -> FarCells:
        """Memory for those pages of a layer that have no home in its codes and scales on the device."""
        far_codes, far_scales = self._room(codes), self._room(scales)
        self._parts += [(codes, far_codes), (scales, far_scales)]
        if self.staged_codes.shape != far_codes.shape:  # the first layer; all are alike
            self.staged_codes, self.staged_scales = (
                torch.empty(far.shape, dtype=far.dtype, device=codes.device) for far in (far_codes, far_scales)
            )
        first = self.pages.near * codes.shape[1] * codes.shape[2] * codes.shape[3]
        in_place = Reach(first, _distance(codes, far_codes), _distance(scales, far_scales))
        staged = Reach(first, _distance(codes, self.staged_codes), _distance(scales, self.staged_scales))
        return FarCells(self, far_codes, far_scales, in_place, staged)

    def _room(self, near: torch.Tensor) -> torch.Tensor:
        shape = (self.pages.count - self.pages.near, *near.shape[1:])
        if near.device.type == "meta":
            return torch.empty(shape, dtype=near.dtype, device="meta")
        return torch.from_numpy(room(shape[0] * near[0].nbytes, near.device)).view(near.dtype).view(shape)

    def on_device(self) -> list[torch.Tensor]:
        """What it takes of video memory beside the layers' own."""
        return [self.table, self.staged_codes, self.staged_scales]

    @property
    def host_bytes(self) -> int:
        """Bytes of main memory."""
        return sum(far.nbytes for _, far in self._parts)

    def of(self, pages: Sequence[int]) -> list[int]:
        """The homes of pages."""
        return [self.pages.homes[page] for page in pages]

    def place(self, slot: int, start: int, pages: Sequence[int]) -> None:
        """Let kernels find a slot's pages from place `start` on."""
        homes = torch.tensor(self.of(pages), dtype=torch.int32)
        self.table[slot, start : start + len(pages)] = homes.to(self.table.device)

    def runs(self, slot: int) -> list[tuple[int, int]]:
        """Places in main memory, from 0 on, where a slot's pages are: stretches [first, last)."""
        near, own = self.pages.near, self.sequences.get(slot)
        return list(_runs(sorted(home - near for home in self.of(own.ids if own else ()) if home >= near)))

    def move_out(self) -> None:
        """Copy out what is to leave video memory, and let kernels find it. Nothing is waited for."""
        with self.pages.lock:
            moves = self.pages.moves()
            if moves:
                self._copy(moves)

    def _copy(self, moves: Sequence[tuple[int, int]]) -> None:
        leaving = torch.tensor([start for start, _ in moves], device=self.table.device)
        places = [to - self.pages.near for _, to in moves]
        for near, far in self._parts:
            rows, first = near[leaving], 0
            for start, end in _runs(places):
                far[start:end].copy_(rows[first : first + end - start], non_blocking=True)
                first += end - start
        there = {to for _, to in moves}
        for slot, own in list(self.sequences.items()):
            if not there.isdisjoint(self.of(own.ids)):
                self.place(slot, 0, own.ids)


def _distance(near: torch.Tensor, far: torch.Tensor) -> int:
    """Elements from where the first place of `far` would lie if `near` went on, to where it does."""
    if near.device.type == "meta":
        return 0
    bytes = far.data_ptr() - near.data_ptr()
    assert bytes % near.element_size() == 0
    return bytes // near.element_size() - near.numel()


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches [first, last) of rising numbers that follow each other."""
    first = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[index - 1] + 1:
            yield places[first], places[index - 1] + 1
            first = index
