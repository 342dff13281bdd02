"""Where a tensor's bytes lie in its file, for those who read them without the map."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .. import _cpu
from ..arch.tensor import Tensor
from ..errors import MachineError

THREADS = 16  # reads at a time: enough for any disk, and they only wait


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [offset, offset + bytes) of a file, the first and last of a tensor that may be strided."""

    file: Path
    offset: int
    bytes: int


def stretch_of(tensor: Tensor) -> Stretch | None:
    """Where the tensor's bytes begin and end in its file; None for one that was made in memory."""
    data = tensor.data
    root = data
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root.base is None or root.dtype != np.uint8 or root.ndim != 1:
        return None
    length = sum((size - 1) * stride for size, stride in zip(data.shape, data.strides, strict=True)) + 1
    return Stretch(tensor.file, data.ctypes.data - root.ctypes.data, length)


class Files:
    """The files of some tensors, opened for direct reads. Raises MachineError with the system's reason."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.paths = sorted({tensor.file for tensor in tensors})
        try:
            self.reader = _cpu.Reader([str(path) for path in self.paths], THREADS)
        except _cpu.ReadError as error:
            raise MachineError(str(error)) from error

    def number(self, path: Path) -> int:
        """What the reader calls a file."""
        return self.paths.index(path)

    def table(self, tensor: Tensor) -> _cpu.RowTable:
        """A matrix whose rows are read one by one. Raises MachineError for one that was made in memory."""
        stretch = stretch_of(tensor)
        if stretch is None:
            raise MachineError(f"{tensor.file}: {tensor.name} was converted in memory; this needs the model as a GGUF")
        return _cpu.RowTable(
            self.reader, self.number(stretch.file), stretch.offset, tensor.data.strides[0], tensor.shape[0]
        )

    def read(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes in memory of their own, of its data's shape and strides. Raises MachineError."""
        stretch = stretch_of(tensor)
        if stretch is None:
            return tensor.data
        try:
            raw = self.reader.read(self.number(stretch.file), stretch.offset, stretch.bytes)
        except _cpu.ReadError as error:
            raise MachineError(str(error)) from error
        return as_strided(raw, tensor.data.shape, tensor.data.strides, writeable=False)
