"""A step as one captured graph per width: the host writes a table of a few hundred bytes, replays, and reads logits.

    host table (pinned) → table → embed … head → logits, likeliest ids → table of the step that would follow

The graph ends by writing the next step's table for greedy decoding without the host: every column advances, and its id
is the likeliest. A host that decides otherwise overwrites it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...ops.gpu.carry import keep_streams
from ...ops.gpu.columns import BASE, COUNT, IDS, PARITY, PART_SLOT, PENDING, POSITION, SLOT, Columns
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from .compile import compiling
from .forward import logits
from .graph import Graphs, StepTable


@triton.jit
def _advance(
    table, ids, width, COLUMNS: tl.constexpr, IDS: tl.constexpr, POSITION: tl.constexpr, COUNT: tl.constexpr,
    BASE: tl.constexpr, PENDING: tl.constexpr, PARITY: tl.constexpr, SLOT: tl.constexpr, PART_SLOT: tl.constexpr,
):  # fmt: skip
    """The table after this one if all columns are kept."""
    c = tl.arange(0, COLUMNS)
    inside = c < width
    tl.store(table + IDS * COLUMNS + c, tl.load(ids + c, mask=inside, other=0).to(tl.int32), mask=inside)
    slots = tl.load(table + SLOT * COLUMNS + c)
    parts = tl.load(table + PART_SLOT * COLUMNS + c)
    counts = tl.load(table + COUNT * COLUMNS + c)
    # a column moves on by the columns of its part, which is the one with its slot
    own = tl.sum(tl.where((slots[:, None] == parts[None, :]), counts[None, :], 0), 1)
    tl.store(table + POSITION * COLUMNS + c, tl.load(table + POSITION * COLUMNS + c) + own, mask=inside)
    tl.store(table + BASE * COLUMNS + c, tl.load(table + BASE * COLUMNS + c) + counts)
    tl.store(table + PENDING * COLUMNS + c, counts)
    tl.store(table + PARITY * COLUMNS + c, 1 - tl.load(table + PARITY * COLUMNS + c))


@dataclass
class Outputs:
    """What a step leaves on the device. logits [T, vocabulary] · ids int64 [T], the likeliest."""

    logits: torch.Tensor
    ids: torch.Tensor


class Steps:
    """Runs steps; owns the table and the graphs."""

    def __init__(self, ops: GpuOps) -> None:
        self.ops = ops
        self.table = StepTable(ops.device)
        self._graphs: Graphs[int, Outputs] = Graphs(ops, self.table)

    def compile(self, widths: Sequence[int]) -> None:
        """Compile what steps of these widths take."""
        if self.ops.device.type == "cuda":
            with compiling():
                for width in widths:
                    self._pass(width)

    def run(self, width: int) -> Outputs:
        """One step of the table's first `width` columns. Nothing is waited for."""
        return self._graphs.run(width, lambda: self._pass(width))

    def _pass(self, width: int) -> Outputs:
        ops, table = self.ops, self.table.table
        columns = Columns.of_step(table, width)
        streams, rows = logits(ops, columns)
        if ops.weights.draft is not None:
            keep_streams(streams, ops.pool.carry, columns)
        ids = ops.argmax(rows)
        _advance[(1,)](
            table, ids, width, COLUMNS=COLUMNS, IDS=IDS, POSITION=POSITION, COUNT=COUNT, BASE=BASE,
            PENDING=PENDING, PARITY=PARITY, SLOT=SLOT, PART_SLOT=PART_SLOT, num_warps=1,
        )  # fmt: skip
        return Outputs(rows, ids)
