"""Reading a GGUF header field by field, every length checked against the file before it is used."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileFormatError

# Far above any real file (a 248,320-token vocabulary with merges is 11 MB), low enough to bound time and memory.
MAX_HEADER_BYTES = 1 << 28
MAX_STRINGS = 1 << 20
MAX_STRING_BYTES = 1 << 26
MAX_NAME_BYTES = 1 << 16

Value = int | float | bool | str | list[str] | NDArray[Any]

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: dict[int, tuple[str, str]] = {
    0: ("u8", "<u1"),
    1: ("i8", "<i1"),
    2: ("u16", "<u2"),
    3: ("i16", "<i2"),
    4: ("u32", "<u4"),
    5: ("i32", "<i4"),
    6: ("f32", "<f4"),
    BOOL: ("bool", "<u1"),
    10: ("u64", "<u8"),
    11: ("i64", "<i8"),
    12: ("f64", "<f8"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Cursor:
    """A position in the mapped header. `field` says what is being read, for the error message."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path, self.mapped = path, mapped
        self.size = len(mapped)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self.at = 0
        self.strings_left = MAX_STRINGS

    def fail(self, field: str, what: str, advice: str = "") -> FileFormatError:
        advice = advice or "the file is damaged, download it again"
        return FileFormatError(f"{self.path}: {field} {what} (byte {self.at:,} of {self.size:,}); {advice}")

    def need(self, count: int, field: str) -> None:
        """`count` more bytes must lie in the header."""
        if count > self.end - self.at:
            if self.end < self.size:
                raise self.fail(field, f"needs {count:,} bytes, beyond the {self.end:,} a header may have")
            raise self.fail(field, f"needs {count:,} bytes, but the file ends after {self.end - self.at:,}")

    def u32(self, field: str) -> int:
        self.need(4, field)
        self.at += 4
        return int(_U32.unpack_from(self.mapped, self.at - 4)[0])

    def u64(self, field: str) -> int:
        self.need(8, field)
        self.at += 8
        return int(_U64.unpack_from(self.mapped, self.at - 8)[0])

    def count(self, field: str, smallest: int, limit: int) -> int:
        """How many items follow, each of at least `smallest` bytes."""
        count = self.u64(field)
        if count * smallest > self.end - self.at:
            raise self.fail(field, f"is {count:,}, more than the rest of the file can hold")
        if count > limit:
            raise self.fail(field, f"is {count:,}; Jubako accepts up to {limit:,}")
        return count

    def string(self, field: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self.u64(f"{field} length")
        if length > limit:
            raise self.fail(field, f"is {length:,} bytes long; Jubako accepts up to {limit:,}")
        self.need(length, field)
        raw = self.mapped[self.at : self.at + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail(field, f"is not valid UTF-8 ({error.reason})") from None
        self.at += length
        return text

    def strings(self, count: int, field: str) -> list[str]:
        """`count` strings; the loop that a vocabulary of 248,320 tokens goes through."""
        if count > self.strings_left:
            raise self.fail(field, f"holds {count:,} strings; Jubako accepts up to {MAX_STRINGS:,} in a file")
        self.strings_left -= count
        mapped, at, end, length_at = self.mapped, self.at, self.end, _U64.unpack_from
        out = [""] * count
        for i in range(count):
            start = at + 8
            if start > end:
                break
            at = start + length_at(mapped, at)[0]
            if at > end:
                break
            try:
                out[i] = mapped[start:at].decode()
            except UnicodeDecodeError as error:
                raise self.fail(f"{field}[{i}]", f"is not valid UTF-8 ({error.reason})") from None
        else:
            self.at = at
            return out
        raise self.fail(f"{field}[{i}]", "runs beyond the end of the header")

    def scalar(self, kind: int, field: str) -> int | float | bool:
        dtype = np.dtype(SCALARS[kind][1])
        self.need(dtype.itemsize, field)
        value = np.frombuffer(self.mapped, dtype, 1, self.at)[0].item()
        self.at += dtype.itemsize
        if kind == BOOL:
            if value > 1:
                raise self.fail(field, f"is a bool of value {value}")
            return bool(value)
        assert isinstance(value, (int, float))
        return value

    def array(self, field: str) -> list[str] | NDArray[Any]:
        """An array of strings (list) or numbers (numpy, own copy)."""
        kind = self.u32(f"{field} element type")
        if kind == ARRAY:
            raise self.fail(field, "is an array of arrays, which no known writer makes")
        if kind != STRING and kind not in SCALARS:
            raise self.fail(field, f"has the unknown element type {kind}")
        if kind == STRING:
            return self.strings(self.count(f"{field} count", 8, MAX_STRINGS), field)
        dtype = np.dtype(SCALARS[kind][1])
        count = self.count(f"{field} count", dtype.itemsize, MAX_HEADER_BYTES)
        numbers = np.frombuffer(self.mapped, dtype, count, self.at).copy() if count else np.empty(0, dtype)
        self.at += count * dtype.itemsize
        if kind == BOOL:
            if count and numbers.max() > 1:
                raise self.fail(field, f"holds a bool of value {numbers.max()}")
            return numbers.astype(np.bool_)
        return numbers

    def value(self, field: str) -> Value:
        kind = self.u32(f"{field} value type")
        if kind == STRING:
            return self.string(field)
        if kind == ARRAY:
            return self.array(field)
        if kind not in SCALARS:
            raise self.fail(field, f"has the unknown value type {kind}")
        return self.scalar(kind, field)
