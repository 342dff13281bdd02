"""A step as one captured graph per width, or as two: the host writes a table of a few hundred bytes and reads ids.

    host table (pinned), drafts → table → embed … head → logits, likeliest ids → table of the step that would follow

The graph ends by writing the next step's table for greedy decoding without the host: every column advances, and its id
is the likeliest. A host that decides otherwise overwrites it. The draft layer's table is that of the drafts that agree.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TypeVar, cast

import torch
import triton
import triton.language as tl

from ...ops.gpu.carry import keep_streams
from ...ops.gpu.columns import BASE, COUNT, FIRST, IDS, PARITY, PART_SLOT, PENDING, POSITION, SLOT, Columns
from ...ops.gpu.draft_accept import leave_accepted
from ...ops.gpu.launch import COLUMNS, overlapped, power_of_two
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.route import largest_of, likeliest_tokens
from ...ops.gpu.target import release, target, wait
from .forward import logits
from .graph import Graphs

Result = TypeVar("Result")


@triton.jit
def _advance(
    table, best, pieces, likeliest, read, draft, idle, width, SIZE: tl.constexpr, DRAFTS: tl.constexpr,
    COLUMNS: tl.constexpr, IDS: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    BASE: tl.constexpr, PENDING: tl.constexpr, PARITY: tl.constexpr, SLOT: tl.constexpr, PART_SLOT: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Leave the ids that were read and the likeliest after them for the host, the table after this one if all columns
    are kept, and the draft layer's if the likeliest are."""
    release(OVERLAP)
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)
    inside = c < width
    id = likeliest_tokens(best, pieces, c, inside, SIZE)
    before = tl.load(table + IDS * COLUMNS + c)
    if DRAFTS:
        leave_accepted(
            table, draft, before, id, idle, COLUMNS, IDS, SLOT, POSITION, FIRST, COUNT, PART_SLOT, BASE, PENDING, PARITY
        )
    tl.debug_barrier()
    tl.store(read + c, before, mask=inside)
    tl.store(likeliest + c, id, mask=inside)
    tl.store(table + IDS * COLUMNS + c, tl.maximum(id, 0), mask=inside)
    slots = tl.load(table + SLOT * COLUMNS + c)
    parts = tl.load(table + PART_SLOT * COLUMNS + c)
    counts = tl.load(table + COUNT * COLUMNS + c)
    # a column moves on by the columns of its part, which is the one with its slot
    own = tl.sum(tl.where((slots[:, None] == parts[None, :]), counts[None, :], 0), 1)
    tl.store(table + POSITION * COLUMNS + c, tl.load(table + POSITION * COLUMNS + c) + own, mask=inside)
    tl.store(table + BASE * COLUMNS + c, tl.load(table + BASE * COLUMNS + c) + counts)
    tl.store(table + PENDING * COLUMNS + c, counts)
    tl.store(table + PARITY * COLUMNS + c, 1 - tl.load(table + PARITY * COLUMNS + c))


def advance(
    table: torch.Tensor, best: torch.Tensor, likeliest: torch.Tensor, read: torch.Tensor, draft: torch.Tensor | None,
    idle: int, width: int,
) -> None:  # fmt: skip
    """End a step of `width` columns by `table`, whose likeliest tokens `best` tells: see `_advance`.

    likeliest, read int32 [16], in main memory; draft: the draft layer's table, if there is one; idle: nobody's slot.
    """
    device = best.device
    _advance[(1,)](
        table, best, best.shape[1], likeliest, read, table if draft is None else draft, idle, width,
        SIZE=power_of_two(best.shape[1]), DRAFTS=draft is not None, COLUMNS=COLUMNS, IDS=IDS, POSITION=POSITION,
        FIRST=FIRST, COUNT=COUNT, BASE=BASE, PENDING=PENDING, PARITY=PARITY, SLOT=SLOT, PART_SLOT=PART_SLOT,
        OVERLAP=target(device).overlap, num_warps=4, **overlapped(device),
    )  # fmt: skip


def pieces(work: Generator[bool, None, Result], whole: bool) -> Generator[bool, None, Result]:
    """`work`, which yields nothing if it is to be done whole."""
    while True:
        try:
            more = next(work)
        except StopIteration as end:
            return cast(Result, end.value)
        if not whole:
            yield more


class Steps:
    """Runs steps by the desk's table, a graph for each width."""

    def __init__(self, ops: GpuOps, graphs: Graphs) -> None:
        self.ops, self.desk, self._graphs = ops, graphs.desk, graphs

    def capture(self, width: int, whole: bool = False) -> None:
        """Have steps of this width ready, and what finds their largest logits."""
        self._graphs.capture(("step", width, whole), partial(self.read, width, whole))
        self._graphs.capture(("largest", 0, width), partial(self.desk.find, 0, width))

    def run(self, width: int, whole: bool = False) -> None:
        """One step of the table's first `width` columns. Nothing is waited for.

        whole: in one piece, which the device is done with sooner; it starts later, which nobody sees while the device
        has other work.
        """
        self._graphs.run(("step", width, whole), partial(self.read, width, whole))
        self._graphs.look(0, width)

    def read(self, width: int, whole: bool = False) -> Iterator[bool]:
        """The work of a step, in the pieces of `logits` if not whole."""
        ops, desk = self.ops, self.desk
        desk.take()
        columns = Columns.of_step(desk.step, width, early=True)
        streams = yield from pieces(logits(ops, columns, desk.logits[:width]), whole)
        if ops.weights.draft is not None:
            keep_streams(streams, ops.pool.carry, columns)
        best = largest_of(desk.logits[:width])
        drafts = desk.draft if ops.weights.draft is not None else None
        advance(desk.step, best, desk.likeliest, desk.read, drafts, ops.pool.idle_slot, width)
