"""Bytes on their way to main memory, beside what the device does."""

from __future__ import annotations

import numpy as np
import torch


class Mover:
    """Brings bytes to main memory through pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = torch.empty(0, dtype=torch.uint8)
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event | None:
        """Now, in the order of what the device was told to do."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def bring(self, taken: torch.Tensor, since: torch.cuda.Event | None, out: np.ndarray) -> None:
        """Bytes that have been on the device `since`, to `out`."""
        if self._stream is None or since is None:
            out[:] = taken.numpy()
            return
        if len(self._pinned) < len(taken):
            self._pinned = torch.empty(len(taken), dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(self._stream):
            since.wait(self._stream)
            self._pinned[: len(taken)].copy_(taken, non_blocking=True)
            self._stream.synchronize()
        np.copyto(out, self._pinned[: len(taken)].numpy())
