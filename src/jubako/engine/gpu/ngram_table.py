"""Where the n-gram table lies while it is in use: in pinned memory, which cards read in place, or in its file."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...arch.network import Network
from ...arch.tensor import Tensor
from ...files.mapping import let_go
from ...ops.gpu.far_table import FarTable
from ...ops.gpu.table import HostTable
from ...place.memory import usable_memory
from ...place.resident import tensors_of
from ...place.where import Files, stretch_of

SMALL = 1 << 30  # bytes up to which it lies in memory that others want, too
SHARE = 2  # where all else lies on cards it may take one part in so many of the memory that is free


def share_of_memory() -> int:
    """Bytes that the table may take of main memory where nothing else wants much of it."""
    return max(SMALL, usable_memory() // SHARE)


class TablePlace:
    """Gives each card its way to the table (`ops.gpu.weights.TablePlace`): one copy for all cards in memory if it has
    at most `most` bytes, else rows from the disk as they are asked for. Raises MachineError where that can't be."""

    def __init__(self, network: Network, most: int, files: Files | None = None) -> None:
        self._network, self._most, self._files = network, most, files
        self._near: dict[int, HostTable] = {}  # by where the table's bytes lie

    def __call__(self, tensor: Tensor, device: torch.device) -> HostTable | FarTable:
        ngram = self._network.config.ngram
        assert ngram is not None
        if tensor.nbytes > self._most and stretch_of(tensor) is not None:
            self._files = self._files or Files(tensors_of(self._network))
            return FarTable(tensor, self._files.table(tensor), ngram.heads, device)
        place = tensor.data.ctypes.data
        if place not in self._near:
            self._near[place] = HostTable.of(tensor, device)
            let_go(tensor.data)
        return replace(self._near[place], device=device)
