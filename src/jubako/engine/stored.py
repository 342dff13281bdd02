"""The CPU's executor in a budget of memory: experts that do not fit stay in the file, and tables always do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from .. import _cpu
from ..arch.weights import Network
from ..errors import MachineError
from ..ops.cpu import CpuState
from ..ops.cpu.stored import StoredOps
from ..place.budget import CpuBudget
from ..place.resident import dense_bytes, in_file, resident, tensors_of
from ..place.store import ExpertStore
from ..place.where import Files, stretch_of
from .cpu import CpuExecutor
from .executor import DraftWish, Speculated
from .logits import Logits

Result = TypeVar("Result")
Progress = Callable[[int, int], None]


class StoredExecutor(CpuExecutor):
    """As `CpuExecutor`, with the same bits, in a budget of memory."""

    def __init__(
        self,
        network: Network,
        threads: int | None,
        kv_bits: int,
        budget: CpuBudget,
        progress: Progress | None = None,
    ) -> None:
        """progress: called with bytes read and bytes to read while loading.

        Raises MachineError where the budget is too small, or a file can't be read.
        """
        self.context, self.chunk = budget.context, budget.chunk
        files = Files(tensors_of(network))
        self.reader = files.reader
        self.store = ExpertStore(network, files, budget.experts)
        to_read, done = dense_bytes(network) + (self.store.bytes_of_all if self.store.whole else 0), 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, to_read)

        network = resident(network, files, read)
        self.store.load(read)
        tables = {id(tensor): files.table(tensor) for tensor in in_file(network) if stretch_of(tensor) is not None}
        super().__init__(network, threads, kv_bits, StoredOps(network, threads, self.store.native, tables))
        self._states = budget.states
        self.experts_in = self.store.lie_in

    def free_memory(self) -> int:
        """See `CpuExecutor.free_memory`: the share of states."""
        return self._states

    def forward(self, ids: Sequence[int], state: CpuState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        return _reading(lambda: super(StoredExecutor, self).forward(ids, state, last_only=last_only))

    def step(self, parts: Sequence[tuple[Sequence[int], CpuState]]) -> list[Logits]:
        """See `Executor.step`."""
        return _reading(lambda: super(StoredExecutor, self).step(parts))

    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """See `Executor.draft`."""
        return _reading(lambda: super(StoredExecutor, self).draft(wishes))

    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """See `Executor.speculate`."""
        return _reading(lambda: super(StoredExecutor, self).speculate(wishes))


def _reading(work: Callable[[], Result]) -> Result:
    """What `work` gives; a file that can't be read any more is the machine's doing."""
    try:
        return work()
    except _cpu.ReadError as error:
        raise MachineError(str(error)) from error
