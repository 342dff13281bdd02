"""Mapping a model file into memory, read-only, and saying in one line why that can't be done."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import FileFormatError


def refuse(path: Path, what: str, advice: str = "") -> NoReturn:
    """Raise FileFormatError: the file, the field and its value, and what to do."""
    raise FileFormatError(f"{path}: {what}{'; ' + advice if advice else ''}")


def map_file(path: Path) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    """The file's bytes as a read-only map, and the same as a uint8 array (which keeps the map alive)."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse(path, "is a directory where a file was expected")
        if not stat.S_ISREG(status.st_mode):
            refuse(path, "is not a regular file")
        if status.st_size == 0:
            refuse(path, "is empty", "download it again")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        refuse(path, "no such file")
    except (OSError, ValueError) as error:
        refuse(path, f"can't be read: {error}")
    return mapped, np.frombuffer(mapped, np.uint8)


def let_go(data: NDArray[np.uint8]) -> None:
    """Take what was read of a map out of this process's memory; the system keeps it as long as it has room for it.

    data: a view of the map's bytes; others than those of a map are left alone.
    """
    root = data
    while isinstance(root.base, np.ndarray):
        root = root.base
    mapped = root.base.obj if isinstance(root.base, memoryview) else root.base
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not data.size:
        return
    length = sum((size - 1) * stride for size, stride in zip(data.shape, data.strides, strict=True)) + data.itemsize
    start = data.ctypes.data - root.ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, start + length - first)
