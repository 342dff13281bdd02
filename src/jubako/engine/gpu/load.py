"""A file's blocks on their way to the GPU: threads copy pieces of its map into pinned memory, from where they go on.

    file's map ──threads──► pinned pieces ──stream of its own──► raw blocks ──► repacked by whoever asked

Pieces are read while those before are on their way and the tensor before is repacked. What has been sent is let go: the
map would count as memory of this process.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import torch

from ...arch.tensor import Tensor
from ...files.mapping import let_go

PIECE = 16 << 20  # bytes
MOST_THREADS = 8


class FileSource:
    """Gives raw blocks (`ops.gpu.matrix.Source`). Close it when all are there."""

    def __init__(self, device: torch.device, threads: int | None = None) -> None:
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, "load")
        # pinned pieces that nobody fills, each with the event after which it has been sent; the oldest first
        self._free: SimpleQueue[tuple[torch.Tensor, torch.cuda.Event | None]] = SimpleQueue()
        for _ in range(2 * self._threads):
            self._free.put((torch.empty(PIECE, dtype=torch.uint8, pin_memory=self._on_gpu), None))
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def __call__(self, tensor: Tensor) -> torch.Tensor:
        """The blocks of a tensor: uint8 of `data`'s shape."""
        data = np.ascontiguousarray(tensor.data)
        out = self._room(data)
        source, target = data.reshape(-1), out.view(-1)
        jobs = []
        for start in range(0, len(source), PIECE):
            part = slice(start, min(start + PIECE, len(source)))
            jobs.append(self._pool.submit(self._send, source[part], target[part]))
        for job in jobs:
            job.result()
        let_go(tensor.data)
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return out

    def _room(self, data: np.ndarray) -> torch.Tensor:
        """Memory that the copies may write at once, whatever the stream of the caller still does."""
        if self._stream is None:
            return torch.empty(data.shape, dtype=torch.uint8, device=self.device)
        with torch.cuda.stream(self._stream):
            out = torch.empty(data.shape, dtype=torch.uint8, device=self.device)
        out.record_stream(torch.cuda.current_stream(self.device))
        return out

    def _send(self, source: np.ndarray, target: torch.Tensor) -> None:
        """One piece, through pinned memory that no other thread has meanwhile."""
        piece, sent = self._free.get()
        try:
            if sent is not None:
                sent.synchronize()
            np.copyto(piece[: len(source)].numpy(), source)
            if self._stream is None:
                target.copy_(piece[: len(source)])
                return
            with torch.cuda.stream(self._stream):
                target.copy_(piece[: len(source)], non_blocking=True)
                sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
                sent.record(self._stream)
        finally:
            self._free.put((piece, sent))

    def close(self) -> None:
        """Give the pinned memory back."""
        self._pool.shutdown()
        if self._stream is not None:
            self._stream.synchronize()
        self._free = SimpleQueue()
