"""Captured graphs, and the table through which the host says what their replays are about."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
import torch

from ...ops.gpu.columns import ROWS, SLOT
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from .compile import compiling

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class StepTable:
    """int32 [ROWS, 16] on the device (see ops.gpu.columns), written from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.table = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device=device)
        self._host = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, pin_memory=device.type == "cuda")

    def write(self, table: np.ndarray) -> None:
        """What the next replay is about. Whoever wrote before has been waited for."""
        self._host.copy_(torch.from_numpy(table))
        self.table.copy_(self._host, non_blocking=True)


class Graphs(Generic[Key, Result]):
    """One graph per key. What it gives lies in memory of its own, overwritten by the next replay of the same key."""

    def __init__(self, ops: GpuOps, table: StepTable) -> None:
        self.ops = ops
        self.table = table.table
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, Result]] = {}

    def run(self, key: Key, work: Callable[[], Result]) -> Result:
        """Replay the graph of `work`, captured when it is first asked for. Nothing is waited for."""
        if self.ops.device.type != "cuda":
            return work()
        self.capture(key, work)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def capture(self, key: Key, work: Callable[[], Result]) -> None:
        """Have the graph ready. `work` runs once, on no sequence."""
        if self.ops.device.type == "cuda" and key not in self._graphs:
            self._graphs[key] = self._capture(work)

    def _capture(self, work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Compile, run once on a table of no sequence, then capture. The table stays as it was."""
        device = self.ops.device
        kept = self.table.clone()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            with compiling():
                work()
            self.table.zero_()
            self.table[SLOT].fill_(self.ops.pool.idle_slot)
            work()
            self.table.copy_(kept)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # others' threads may copy pages to main memory meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = work()
        return graph, result
