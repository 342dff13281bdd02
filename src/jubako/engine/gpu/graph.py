"""Captured graphs, and what passes between them and the host: tables of columns in, token ids and logits out."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import torch

from ...ops.gpu.columns import ROWS, SLOT
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from .compile import compiling

Work = Callable[[], None]


class Desk:
    """What a pass reads and leaves, in memory that stays where it is.

    step, draft  int32 [ROWS, 16] on the device: the tables of a step and of a pass of the draft layer (ops.gpu.columns)
    likeliest    int32 [16]: of a step's columns, -1 where numbers broke down
    drafts       int32 [15, 16]: by turn and part
    logits       float32 [16, vocabulary] of the last pass
    meanwhile    what the host does when passes are under way, before it waits for them
    """

    def __init__(self, device: torch.device, vocabulary: int) -> None:
        self.device = device
        self.on_gpu = on_gpu = device.type == "cuda"
        self.tables = torch.zeros(2, ROWS, COLUMNS, dtype=torch.int32, device=device)
        self.step, self.draft = self.tables
        self._tables = torch.zeros(2, ROWS, COLUMNS, dtype=torch.int32, pin_memory=on_gpu)
        self._written = self._tables.numpy()
        self.found = torch.zeros(COLUMNS, COLUMNS, dtype=torch.int32, device=device)
        self.likeliest, self.drafts = self.found[0], self.found[1:]
        self._found = torch.zeros(COLUMNS, COLUMNS, dtype=torch.int32, pin_memory=on_gpu)
        self._read = self._found.numpy()
        self.logits = torch.zeros(COLUMNS, vocabulary, device=device)
        self._logits = torch.zeros(COLUMNS, vocabulary, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self.meanwhile: Work | None = None

    def write(self, step: np.ndarray | None = None, draft: np.ndarray | None = None) -> None:
        """Upload tables for the next passes. Whoever wrote before has fetched what came of it."""
        if step is not None:
            self._written[0] = step
        if draft is not None:
            self._written[1] = draft
        which = slice(0 if step is not None else 1, 2 if draft is not None else 1)
        self.tables[which].copy_(self._tables[which], non_blocking=True)

    def choose(self, ids: list[int]) -> None:
        """Give the draft table's first columns other ids, once the pass before has been waited for."""
        self._written[1, 0, : len(ids)] = ids
        self.draft[0].copy_(self._tables[1, 0], non_blocking=True)

    def fetch(self) -> np.ndarray:
        """Wait for the passes before; `likeliest` and `drafts` as one array [16, 16], valid until the next call."""
        self._found.copy_(self.found, non_blocking=True)
        if self.meanwhile is not None:
            self.meanwhile()
        self._wait()
        return self._read

    def rows(self, first: int, count: int) -> np.ndarray:
        """Logits [count, vocabulary] from row `first` on, valid until the next pass."""
        part = slice(first, first + count)
        self._logits[part].copy_(self.logits[part], non_blocking=True)
        self._wait()
        return self._logits[part].numpy()

    def _wait(self) -> None:
        if self._event is not None:
            self._event.record()
            self._event.synchronize()


class Graphs:
    """One graph per key, all in one memory pool: what a pass leaves lies on the desk, nothing else outlasts it."""

    def __init__(self, ops: GpuOps, desk: Desk) -> None:
        self.ops, self.desk = ops, desk
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._on_gpu = ops.device.type == "cuda"
        if self._on_gpu:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(ops.device)

    def run(self, key: Hashable, work: Work) -> None:
        """Replay the graph of `work`, captured when it is first asked for. Nothing is waited for."""
        if not self._on_gpu:
            work()
            return
        self.capture(key, work)
        with self.ops.ordered():
            self._graphs[key].replay()

    def capture(self, key: Hashable, work: Work) -> None:
        """Have the graph ready: compile, run once on tables of no sequence, capture. The tables stay as they were."""
        if not self._on_gpu or key in self._graphs:
            return
        kept = self.desk.tables.clone()
        current = torch.cuda.current_stream(self.ops.device)
        self._stream.wait_stream(current)
        with self.ops.ordered(), torch.cuda.stream(self._stream):
            with compiling():
                work()
            self.desk.tables.zero_()
            self.desk.tables[:, SLOT].fill_(self.ops.pool.idle_slot)
            work()
            self.desk.tables.copy_(kept)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # others' threads may copy pages to main memory meanwhile
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with capture, self.ops.capturing():
            work()
        self._graphs[key] = graph
