"""Typed, checked access to a file's metadata: whoever asks for a field names the range it may lie in.

Files differ in integer width, in numbers stored as floats, and in scalars given as per-layer arrays; a value that is
absent, of another kind or out of range ends in a FileFormatError naming file, key and value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FileFormatError, MissingTensorError

MAX_SIZE = 2**31 - 1
MAX_ARRAY = 1 << 16
MISSING_SHOWN = 200


def _plain(value: Any) -> Any:
    """A numpy scalar or array as Python numbers; everything else unchanged."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class Metadata:
    """The key-value pairs of one model; `prefix` is put before every key, `source` names the file in errors."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self.values

    def refuse(self, key: str, value: Any, why: str) -> FileFormatError:
        """The error to raise for a bad value."""
        return FileFormatError(f"{self.source}: {self.prefix}{key} is {_short(value)}; {why}")

    def get(self, key: str) -> Any:
        """The value of a required key as plain Python numbers, lists or strings."""
        if key not in self:
            raise FileFormatError(f"{self.source}: the required field {self.prefix}{key} is missing")
        value = self.values[self.prefix + key]
        if isinstance(value, np.ndarray) and value.size > MAX_ARRAY:
            raise self.refuse(key, value[:4], f"it goes on for {value.size} entries, more than {MAX_ARRAY}")
        return _plain(value)

    def whole(self, key: str, low: int = 1, high: int = MAX_SIZE, default: int | None = None) -> int:
        """An integer of any stored width. A one-element array counts as its element."""
        if default is not None and key not in self:
            return default
        value = self.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
            value = value[0]
        return self._whole(key, value, low, high)

    def wholes(self, key: str, low: int = 0, high: int = MAX_SIZE) -> tuple[int, ...]:
        """An array of integers; a scalar counts as one element."""
        value = self.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str):
            value = [value]
        if len(value) > MAX_ARRAY:
            raise self.refuse(key, value, f"it has {len(value)} entries, more than {MAX_ARRAY}")
        return tuple(self._whole(key, item, low, high) for item in value)

    def uniform(self, key: str, high: int = MAX_SIZE) -> int:
        """A positive integer given once or per layer; layers that lack the part say 0, all others must agree."""
        sizes = set(self.wholes(key, 0, high)) - {0}
        if len(sizes) != 1:
            raise self.refuse(key, self.get(key), "it must be positive and the same in every layer that has it")
        return sizes.pop()

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low..high."""
        if default is not None and key not in self:
            return default
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, value, "it must be a number")
        if not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(key, value, f"it must lie between {low} and {high}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        if default is not None and key not in self:
            return default
        value = self.get(key)
        if not isinstance(value, str):
            raise self.refuse(key, value, "it must be a string")
        return value

    def _whole(self, key: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or (isinstance(value, bool) and high > 1):
            raise self.refuse(key, value, "it must be an integer")
        if not low <= int(value) <= high:
            raise self.refuse(key, value, f"it must lie between {low} and {high}")
        return int(value)


def missing_tensors(source: str, names: Sequence[str]) -> MissingTensorError:
    """The error to raise when `names` are not in the files; very long lists are cut."""
    shown = ", ".join(names[:MISSING_SHOWN])
    rest = f" and {len(names) - MISSING_SHOWN} more" if len(names) > MISSING_SHOWN else ""
    return MissingTensorError(f"{source}: {len(names)} needed tensors are missing: {shown}{rest}")
