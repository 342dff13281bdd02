"""A tensor as it lies in a file: its blocks, mapped and not read until used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import FileFormatError
from ..quant import BlockType, decode

if TYPE_CHECKING:
    import torch

_INTEGERS = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Raw blocks of one tensor.

    shape   torch order, row length last, e.g. (experts, rows, columns)
    data    uint8 (*shape[:-1], bytes of a row), a read-only view of the memory map; may be strided in all
            dimensions but the last
    offset  of the tensor's first byte in `file`
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        return int(self.data.size)

    def decoded(self) -> NDArray[np.float32]:
        """All weights as float32, of `shape`. Reads the whole tensor."""
        return decode(self.type, self.data)

    def float32(self) -> torch.Tensor:
        """`decoded` as a torch tensor. Importing torch takes seconds, so it is left until someone wants one."""
        import torch

        return torch.from_numpy(self.decoded())

    def integers(self) -> NDArray[np.int64]:
        """The values of an integer tensor, which must not pass through float32."""
        if self.type.name not in _INTEGERS:
            raise FileFormatError(f"{self.file}: tensor {self.name} is {self.type.name}; integers were expected")
        return np.ascontiguousarray(self.data).view(_INTEGERS[self.type.name]).astype(np.int64)


def mapped_tensor(
    mapped: NDArray[np.uint8], file: Path, name: str, kind: BlockType, shape: tuple[int, ...], offset: int
) -> StoredTensor:
    """A tensor of `shape` at `offset` of the mapped file; the caller has checked that it lies inside."""
    row = kind.row_bytes(shape[-1])
    data_shape = (*shape[:-1], row)
    size = math.prod(data_shape)
    return StoredTensor(name, kind, shape, mapped[offset : offset + size].reshape(data_shape), file, offset)
