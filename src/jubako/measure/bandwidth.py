"""What the machine's memory gives, and what this process takes of it."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError

BUFFER = 1 << 30  # bytes: larger than the caches of a desktop processor


def use_isa(isa: str) -> None:
    """Have the kernels use that instruction set. Raises RequestError where this processor lacks it."""
    import jubako._cpu as _cpu

    try:
        _cpu.set_isa(isa)
    except ValueError as error:
        raise RequestError(str(error)) from error


def read_bandwidth(repeats: int = 3) -> float:
    """Bytes/s at which the kernels' threads read memory in order, the best of `repeats` passes over one buffer."""
    import jubako._cpu as _cpu

    buffer = _buffer()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        _cpu.read_all(buffer)
        seconds.append(time.perf_counter() - started)
    return BUFFER / min(seconds)


@lru_cache(maxsize=1)
def _buffer() -> NDArray[np.uint8]:
    return np.ones(BUFFER, np.uint8)


def private_memory() -> int | None:
    """Bytes in memory of this process that belong to no file, without the bandwidth buffer. None off Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            own = int(line.split()[1]) * 1024
            return own - (BUFFER if _buffer.cache_info().currsize else 0)
    return None
