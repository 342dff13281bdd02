"""Writing a GGUF file in one pass: metadata and tensor list first, then the data tensor by tensor."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quant import BlockType, block_type
from .cursor import ARRAY, SCALARS, STRING, Value
from .gguf import MAGIC

_ID_OF = {name: kind for kind, (name, _) in SCALARS.items()}
_ID_OF_DTYPE = {np.dtype(bool if name == "bool" else dtype): kind for kind, (name, dtype) in SCALARS.items()}


class GgufWriter:
    """Streams a file of any size with memory for one chunk.

        with GgufWriter(path) as writer:
            writer.add("general.architecture", "qwen4exp")
            writer.declare("token_embd.weight", "Q8_0", (vocabulary, hidden))
            writer.write("token_embd.weight", blocks)      # an array, or an iterable of arrays

    Tensors are written in the order of their declaration. The file appears under its name only when it is
    complete; an exception inside the block removes what was written.
    """

    def __init__(self, path: Path | str, alignment: int = 32) -> None:
        self.path = Path(path)
        self.alignment = alignment
        self._partial = self.path.with_name(self.path.name + ".part")
        self._file = self._partial.open("wb")
        self._metadata: dict[str, bytes] = {}
        self._tensors: list[tuple[str, BlockType, tuple[int, ...], int]] = []
        self._written = -1  # tensors written; -1 until the header is
        self._offset = 0
        if alignment != 32:
            self.add("general.alignment", alignment)

    def add(self, key: str, value: Value | Sequence[Any], type: str = "") -> None:
        """Add a metadata key. Without `type` ("u32", "f32", "u64" …; of the elements, for a list) integers become
        u32 (i32 below 0, u64 above 2³²), floats f32, and lists of integers i32; numpy arrays keep their type."""
        assert self._written < 0, "metadata comes before the first tensor's data"
        assert key not in self._metadata, f"{key} added twice"
        self._metadata[key] = _encoded(value, type)

    def declare(self, name: str, kind: BlockType | int | str, shape: Sequence[int]) -> None:
        """Announce a tensor: torch order, row length last."""
        assert self._written < 0, "tensors are declared before the first one's data"
        kind = block_type(kind)
        size = math.prod(shape[:-1]) * kind.row_bytes(shape[-1])
        self._tensors.append((name, kind, tuple(shape), size))

    def write(self, name: str, data: NDArray[Any] | Iterable[NDArray[Any]]) -> None:
        """The blocks of the next declared tensor: one array, or several that follow each other."""
        self._begin()
        expected, kind, _, size = self._tensors[self._written]
        assert name == expected, f"{name} written where {expected} comes next"
        written = 0
        for chunk in [data] if isinstance(data, np.ndarray) else data:
            self._file.write(np.ascontiguousarray(chunk).data)
            written += chunk.nbytes
        assert written == size, f"{name}: {written} bytes written, {kind.name} of its shape has {size}"
        self._pad()
        self._written += 1

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._begin()
        assert self._written == len(self._tensors), f"{self._tensors[self._written][0]} was declared but not written"
        self._file.close()
        os.replace(self._partial, self.path)

    def __enter__(self) -> GgufWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _begin(self) -> None:
        if self._written >= 0:
            return
        self._written = 0
        self._file.write(MAGIC + struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata)))
        for key, value in self._metadata.items():
            self._file.write(_string(key) + value)
        offset = 0
        for name, kind, shape, size in self._tensors:
            info = struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind.id, offset)
            self._file.write(_string(name) + info)
            offset += -(-size // self.alignment) * self.alignment
        self._pad()

    def _pad(self) -> None:
        self._file.write(bytes(-self._file.tell() % self.alignment))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encoded(value: Value | Sequence[Any], type: str) -> bytes:
    """u32 value type and value."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        kind = _ID_OF[type or _scalar_type(value)]
        return struct.pack("<I", kind) + np.array(value, SCALARS[kind][1]).tobytes()
    if isinstance(value, np.ndarray):
        kind = _ID_OF[type] if type else _ID_OF_DTYPE[value.dtype]
    elif value and isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    else:
        first = value[0] if value else 0
        kind = _ID_OF[type or ("bool" if isinstance(first, bool) else "f32" if isinstance(first, float) else "i32")]
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + np.asarray(value, SCALARS[kind][1]).tobytes()


def _scalar_type(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "f32"
    if value < 0:
        return "i32" if value >= -(1 << 31) else "i64"
    return "u32" if value < 1 << 32 else "u64"
