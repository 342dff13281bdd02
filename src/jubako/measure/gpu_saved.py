"""How fast a GPU's sequences go on from states that were kept, in memory and on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..engine.saved.checkpoint import Checkpoint, prefix_digests
from ..engine.saved.file import Layout
from ..engine.saved.store import SessionStore
from .gpu_figures import DiskTime, ResumeTime

if TYPE_CHECKING:
    from .bench_gpu import GpuBench


def resumed(bench: GpuBench, depth: int, repeats: int = 3) -> ResumeTime:
    """Time a checkpoint after `depth` tokens, and a sequence that begins with it; the best of some."""
    bench.note(f"resuming {depth} tokens")
    executor, ids = bench.executor, np.zeros(depth, np.int32)
    saves, resumes, firsts = [], [], []
    with bench.states(2, depth) as [one, other]:
        for _ in range(repeats + 1):
            started = time.perf_counter()
            saved = executor.save(one)
            saves.append(1000 * (time.perf_counter() - started))
            saved.content()  # what a thread still brings to main memory
            after = time.perf_counter()
            executor.resume(other, saved, ids)
            resumes.append(1000 * (time.perf_counter() - after))
            executor.step([(bench.ids(1), other)])
            firsts.append(1000 * (time.perf_counter() - after))
            other.reset()
            executor.pool.pages.release(saved.pages)
    return ResumeTime(depth, min(saves[1:]), min(resumes[1:]), min(firsts[1:]))


def from_disk(bench: GpuBench, depth: int, folder: Path) -> DiskTime:
    """Time writing a state of `depth` tokens into a folder, and a new store that finds it there.

    The system's cache is asked to forget the file, which it may do or not.
    """
    bench.note(f"{depth} tokens to the disk and back")
    executor, ids = bench.executor, np.zeros(depth, np.int32)
    pool = executor.pool
    with bench.states(2, depth) as [one, other]:
        layout = Layout(b"benchmark".ljust(32), executor.context, pool.page_tokens, pool.page_bytes, one.fixed_bytes)
        saved = executor.save(one)
        store = SessionStore(folder)
        store.attach(layout, pool)
        started = time.perf_counter()
        store.offer(Checkpoint(ids, prefix_digests(ids, [depth])[0], saved))
        store.drain()
        written = time.perf_counter() - started
        store.close()
        pool.pages.release(saved.pages)
        size = sum(_forgotten(path) for path in folder.iterdir())
        started = time.perf_counter()
        again = SessionStore(folder)
        again.attach(layout, pool)
        found = again.load(np.append(ids, 0).astype(np.int32))  # a prompt that goes on
        assert found is not None, "what was just written is not there"
        read = time.perf_counter() - started
        executor.resume(other, found, ids)
        executor.step([(bench.ids(1), other)])
        first = time.perf_counter() - started
        pool.pages.release(found.pages)
        again.close()
    return DiskTime(depth, size, written, 1000 * read, 1000 * first)


def _forgotten(path: Path) -> int:
    """Bytes of a file, of which memory keeps none if the system does as it is told."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    return path.stat().st_size
