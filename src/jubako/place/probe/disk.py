"""How fast the disk below a folder or a file is read: in order, and 4 KiB here and there, past the page cache."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...errors import MachineError
from ..machine import Disk

BLOCK = 4096
PIECE = 1 << 20  # bytes of a read in order: about a third of an expert
SCRATCH = 512 << 20  # bytes of the file that is written where there is none to read
IN_FLIGHT = 16
SECONDS = 1.5  # of each measurement


def measure(place: Path, seconds: float = SECONDS, scratch: int = SCRATCH) -> Disk:
    """The file system of `place`: a file of at least `scratch` bytes is read as it is, in a folder one is written.

    Raises MachineError where nothing can be written or read.
    """
    folder = place if place.is_dir() else place.parent
    try:
        if place.is_file() and place.stat().st_size >= scratch:
            return _measure(place, seconds)
        if shutil.disk_usage(folder).free < 2 * scratch:
            raise MachineError(f"{folder}: less than {2 * scratch / 1e9:.1f} GB are free; the disk can't be measured")
        path = folder / f".jubako-probe-{os.getpid()}"
        try:
            _write(path, scratch)
            return _measure(path, seconds)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"{folder}: the disk can't be measured: {error.strerror or error}") from error


def _write(path: Path, size: int) -> None:
    piece = random.Random(0).randbytes(PIECE)
    with path.open("wb") as file:
        for _ in range(size // PIECE):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _measure(path: Path, seconds: float) -> Disk:
    fd, direct = _open(path)
    try:
        size = os.fstat(fd).st_size
        order = _Order(size // PIECE)
        sequential = _rate(lambda buffer: os.preadv(fd, [buffer], order.next() * PIECE), PIECE, IN_FLIGHT // 2, seconds)
        places = size // BLOCK

        def anywhere(buffer: mmap.mmap) -> int:
            return os.preadv(fd, [buffer], random.randrange(places) * BLOCK)

        if not direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        reads = _rate(anywhere, BLOCK, IN_FLIGHT, seconds) / BLOCK
        alone = _rate(anywhere, BLOCK, 1, seconds / 3) / BLOCK
    finally:
        os.close(fd)
    return Disk(str(path.parent), sequential, reads, 1 / alone, direct, shutil.disk_usage(path.parent).free)


class _Order:
    """Piece numbers one after the other, from the start again at the end. Threads may share it."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, -1

    def next(self) -> int:
        self.at = (self.at + 1) % self.count
        return self.at


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor past the page cache where the file system can do that, and whether it can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(fd, [mmap.mmap(-1, BLOCK)], 0)
        return fd, True
    except OSError:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return fd, False


def _rate(read: Callable[[mmap.mmap], int], size: int, workers: int, seconds: float) -> float:
    """Bytes/s of so many reads in flight, one of each at least."""
    end = time.perf_counter() + seconds

    def work() -> int:
        buffer = mmap.mmap(-1, size)  # whole pages: aligned, as direct reads ask
        done = read(buffer)
        while time.perf_counter() < end:
            done += read(buffer)
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        total = sum(job.result() for job in [pool.submit(work) for _ in range(workers)])
    return total / (time.perf_counter() - started)
