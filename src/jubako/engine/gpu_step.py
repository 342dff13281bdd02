"""A step as one captured graph per width: the host writes a table of a few hundred bytes, replays, and reads logits.

    host table (pinned) → table → embed … head → logits, likeliest ids, sums → table of the step that would follow

The graph ends by writing the next step's table for greedy decoding without the host: every column advances, and its id
is the likeliest. A host that decides otherwise overwrites it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from ..ops.gpu.columns import BASE, COUNT, IDS, PARITY, PART_SLOT, PENDING, POSITION, ROWS, SLOT, Columns
from ..ops.gpu.launch import COLUMNS
from ..ops.gpu.ops import GpuOps
from .gpu_forward import logits as read


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
    """What a step leaves on the device. logits [T, vocabulary] · ids int64 [T], the likeliest · sums [T] of logits."""

    logits: torch.Tensor
    ids: torch.Tensor
    sums: torch.Tensor


class Steps:
    """Runs steps; owns the table and the graphs."""

    def __init__(self, ops: GpuOps) -> None:
        self.ops = ops
        self.table = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device=ops.device)
        pinned = ops.device.type == "cuda"
        self._host = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, pin_memory=pinned)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Outputs]] = {}

    def write(self, table: np.ndarray) -> None:
        """The table of the next step. The step before must have been waited for."""
        self._host.copy_(torch.from_numpy(table))
        self.table.copy_(self._host, non_blocking=True)

    def run(self, width: int) -> Outputs:
        """One step of the table's first `width` columns. Nothing is waited for."""
        if self.ops.device.type != "cuda":
            return self._pass(width)
        if width not in self._graphs:
            self._graphs[width] = self._capture(width)
        graph, outputs = self._graphs[width]
        graph.replay()
        return outputs

    def capture(self, width: int) -> None:
        """Have the graph of that width ready; kernels are compiled now."""
        if self.ops.device.type == "cuda" and width not in self._graphs:
            self._graphs[width] = self._capture(width)

    def _pass(self, width: int) -> Outputs:
        logits = read(self.ops, Columns.of_step(self.table, width), last_only=False)
        ids = self.ops.argmax(logits)
        sums = logits.sum(dim=1)
        _advance[(1,)](
            self.table, ids, width, COLUMNS=COLUMNS, IDS=IDS, POSITION=POSITION, COUNT=COUNT, BASE=BASE,
            PENDING=PENDING, PARITY=PARITY, SLOT=SLOT, PART_SLOT=PART_SLOT, num_warps=1,
        )  # fmt: skip
        return Outputs(logits, ids, sums)

    def _capture(self, width: int) -> tuple[torch.cuda.CUDAGraph, Outputs]:
        """Compile on a table of no sequence, then capture. The table stays as it was."""
        kept = self.table.clone()
        stream = torch.cuda.Stream(self.ops.device)
        stream.wait_stream(torch.cuda.current_stream(self.ops.device))
        with torch.cuda.stream(stream):
            self.table.zero_()
            self.table[SLOT].fill_(self.ops.pool.idle_slot)
            self._pass(width)
            self.table.copy_(kept)
        torch.cuda.current_stream(self.ops.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._pass(width)
        return graph, outputs
