"""Captured graphs, and what passes between them and the host: tables of columns in, token ids and logits out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from ... import _cpu
from ...ops.gpu.columns import PART_SLOT, ROWS, SLOT
from ...ops.gpu.draft_table import take_new
from ...ops.gpu.largest import LARGEST, find_largest
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from ..logits import Largest, Logits
from .compile import compiling
from .memory import too_little

ASLEEP = 0.75  # of the shortest of the last LASTED passes, of a thread that waits gently;
LASTED = 8
LOOK = 5e-6  # seconds from one look at whether it is over to the next, then

Work = Callable[[], Iterable[bool] | None]
"""What a graph holds. Where it yields, the graph is cut: what comes before starts while the rest is launched."""


class Desk:
    """What a pass reads and leaves, in memory that stays where it is.

    step, draft  int32 [ROWS, 16] on the device: the tables of a step and of a pass of the draft layer (ops.gpu.columns)
    written      a step's table as the host wrote it, and its number; the step takes it if it is new. Else it goes on
                 from where the one before it has left its table
    caught_up    as the host wrote it, the table of the draft layer's first pass, which takes it
    likeliest    int32 [16]: of a step's columns, -1 where numbers broke down
    drafts       int32 [15, 16]: by turn and part
    read         int32 [16]: the ids of a step's columns; all three in main memory, where kernels write to
    logits       float32 [16, vocabulary] of the last step, in its last rows those of the draft layer's last pass
    meanwhile    what the host does when passes are under way, before it waits for them
    """

    def __init__(self, device: torch.device, vocabulary: int) -> None:
        self.device = device
        self.on_gpu = on_gpu = device.type == "cuda"
        self.tables = torch.zeros(2, ROWS, COLUMNS, dtype=torch.int32, device=device)
        self.step, self.draft = self.tables
        self._taken = torch.zeros(1, dtype=torch.int32, device=device)
        self._tables = torch.zeros(2, ROWS + 1, COLUMNS, dtype=torch.int32, pin_memory=on_gpu)
        self.written, self.caught_up = self._tables[0], self._tables[1, :ROWS]
        self._written, self._number = self._tables[:, :ROWS].numpy(), self._tables[0, ROWS].numpy()
        found = torch.zeros(COLUMNS + 1, COLUMNS, dtype=torch.int32, pin_memory=on_gpu)
        self.likeliest, self.drafts, self.read = found[0], found[1:COLUMNS], found[COLUMNS]
        self._found = found.numpy()
        self.logits = torch.zeros(COLUMNS, vocabulary, device=device)
        self._logits = torch.zeros(COLUMNS, vocabulary, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self._marked, self._gently = False, False
        self._began, self._lasted = 0.0, deque[float](maxlen=LASTED)
        self._largest_ids = torch.zeros(COLUMNS, LARGEST, dtype=torch.int32, pin_memory=on_gpu)
        self._largest_values = torch.zeros(COLUMNS, LARGEST, pin_memory=on_gpu)
        self._passes = 0
        self._asked = 0  # the pass whose largest logits were asked for last
        self._known = (0, 0, 0)  # the pass whose largest logits are known, and of which rows
        self.meanwhile: Callable[[], None] | None = None

    def write(self, step: np.ndarray | None = None, draft: np.ndarray | None = None) -> None:
        """Leave tables where the next step or draft pass finds them. Whoever wrote before has fetched what came of
        it."""
        self._marked = False  # of a pass that failed before it was waited for
        if draft is not None:
            self._written[1] = draft
        if step is not None:
            self._written[0] = step
            self._number[0] += 1

    def take(self) -> None:
        """Launch what makes `step` the table that the host has written, if that is new, with the drafts made since."""
        take_new(self.written, self.step, self._taken, self.drafts)

    @contextmanager
    def at_rest(self, slot: int) -> Iterator[None]:
        """Inside, the tables are those of the sequence in an idle slot; what is launched there is over at the end."""
        self._wait()
        kept, written = self.tables.clone(), self._written.copy()
        self._written[:] = 0
        self._written[:, [SLOT, PART_SLOT]] = slot
        self.tables.copy_(self._tables[:, :ROWS])
        try:
            yield
        finally:
            self.tables.copy_(kept)
            self._wait()
            self._written[:] = written
            self._number[0] += 1  # a table that is still to be taken may have been, for the idle slot

    def choose(self, ids: list[int]) -> None:
        """Give the draft table's first columns other ids, once the pass before has been waited for."""
        self._written[1, 0, : len(ids)] = ids
        self.draft[0].copy_(self.caught_up[0], non_blocking=True)

    @property
    def passes(self) -> int:
        """How often passes were waited for."""
        return self._passes

    def mark(self) -> None:
        """What is launched from now on is not waited for by the next `fetch`."""
        self._record()
        self._marked = True

    def fetch(self) -> np.ndarray:
        """Wait for the passes before; `likeliest`, `drafts` and `read` as one array [17, 16], valid until the next
        pass."""
        if self.meanwhile is not None:
            self.meanwhile()
        if not self._marked:
            self._record()
        self._marked = False
        if self._gently and self._lasted:
            left = ASLEEP * min(self._lasted) - (time.perf_counter() - self._began)
            if left > 0:
                time.sleep(left)
        self._finish()
        self._lasted.append(time.perf_counter() - self._began)
        self._passes += 1
        return self._found

    def draft_rows(self, count: int) -> slice:
        """Rows of the logits in which so many parts' drafts are looked for: those of a step before may be asked for
        still."""
        return slice(COLUMNS - count, COLUMNS)

    def logits_of(self, first: int, likeliest: Sequence[int]) -> Logits:
        """Logits of the last pass from row `first` on, which lie here until they are read or `fetch` comes again."""
        count = len(likeliest)
        return Logits(
            partial(self._rows, self._passes, first, count),
            likeliest,
            partial(self._largest, self._passes, first, count),
        )

    def _rows(self, passes: int, first: int, count: int) -> np.ndarray:
        assert passes == self._passes, "logits were asked for after the executor had gone on"
        part = slice(first, first + count)
        self._logits[part].copy_(self.logits[part], non_blocking=True)
        self._wait()
        return self._logits[part].numpy()

    @property
    def wanted(self) -> bool:
        """Whether the pass under way will be asked for its largest logits, as the one before was."""
        return 0 < self._asked == self._passes

    def find(self, first: int, stop: int) -> None:
        """Launch what finds the largest logits of rows `first` to `stop`, in main memory."""
        rows = slice(first, stop)
        find_largest(self.logits[rows], self._largest_ids[rows], self._largest_values[rows])

    def foretell(self, first: int, stop: int) -> None:
        """That has been launched behind the pass under way."""
        self._known = (self._passes + 1, first, stop)

    def _largest(self, passes: int, first: int, count: int) -> Largest:
        assert passes == self._passes, "logits were asked for after the executor had gone on"
        self._asked, part = passes, slice(first, first + count)
        known, start, stop = self._known
        if known != passes or not start <= first or stop < part.stop:
            self.find(first, part.stop)
            self._wait()
            self._known = (passes, first, part.stop)
        return self._largest_ids[part].numpy(), self._largest_values[part].numpy()

    def wait_gently(self) -> None:
        """Sleep through most of a pass, then look whether it is over: a thread that spins takes the processor from
        those that compute, and one that sleeps to the end is woken late beside them."""
        self._gently = True

    def _record(self) -> None:
        self._began = time.perf_counter()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self.device))

    def _finish(self) -> None:
        if self._event is None:
            return
        if not self._gently:
            self._event.synchronize()
            return
        while not self._event.query():
            _cpu.pause(LOOK)

    def _wait(self) -> None:
        self._record()
        self._finish()


class Graphs:
    """Graphs by key, all in one memory pool: what a pass leaves lies on the desk, nothing else outlasts it."""

    def __init__(self, ops: GpuOps, desk: Desk) -> None:
        self.ops, self.desk = ops, desk
        self._graphs: dict[Hashable, list[torch.cuda.CUDAGraph]] = {}
        self._on_gpu = ops.device.type == "cuda"
        if self._on_gpu:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(ops.device)

    def __len__(self) -> int:
        """How many were captured."""
        return len(self._graphs)

    def run(self, key: Hashable, work: Work) -> None:
        """Replay the graphs of `work`, captured when they are first asked for. Nothing is waited for."""
        if not self._on_gpu:
            _all(work)
            return
        self.capture(key, work)
        with self.ops.ordered():
            for graph in self._graphs[key]:
                graph.replay()

    def look(self, first: int, stop: int) -> None:
        """After a pass: find the largest logits of these rows, if they were asked for after the pass before."""
        if self.desk.wanted:
            self.run(("largest", first, stop), partial(self.desk.find, first, stop))
            self.desk.foretell(first, stop)

    def capture(self, key: Hashable, work: Work) -> None:
        """Have the graphs ready: compile, run once on tables of no sequence, capture. The tables stay as they were."""
        if not self._on_gpu or key in self._graphs:
            return
        current = torch.cuda.current_stream(self.ops.device)
        self._stream.wait_stream(current)
        with self.ops.ordered(), torch.cuda.stream(self._stream):
            with compiling():
                _all(work)
            with self.desk.at_rest(self.ops.pool.idle_slot):
                _all(work)
        current.wait_stream(self._stream)
        try:
            self._graphs[key] = self._captured(work)
        except torch.cuda.OutOfMemoryError as error:
            raise too_little([self.ops.device], f"the graph of {key}", error) from error

    def _captured(self, work: Work) -> list[torch.cuda.CUDAGraph]:
        graphs, pieces = [], None
        while True:
            graph = torch.cuda.CUDAGraph()
            # others' threads may copy pages to main memory meanwhile
            capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
            with capture, self.ops.capturing():
                if pieces is None:
                    pieces = iter(work() or ())
                more = next(pieces, False)
            graphs.append(graph)
            if not more:
                return graphs


def _all(work: Work) -> None:
    for _ in work() or ():
        pass
