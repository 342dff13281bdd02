"""Experts change places while the engine runs: the hottest get slots, by copies beside the steps; nothing waits.

    step n            counts → host
    some step later   the coldest leave the table; then their slots are filled on a stream of its own
    some step later   the newcomers enter the table

Tables are written in the stream of the steps, between two of them, so a slot is only ever written while it is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ...ops.gpu.boxes import Boxes
from ...ops.gpu.residents import Pool
from ...place.heat import Heat
from .balance import Balance

EVERY = 8  # steps from one look at the counts to the next
KEPT = 512  # such looks from one time that the heat is kept to the next
TOGETHER = 16  # experts that change places at a time, at most, of a shape


@dataclass
class Change:
    """Experts entries [n, 2] (layer, expert) on their way into slots `places` [n] of a pool."""

    pool: Pool
    entries: np.ndarray
    places: np.ndarray


class Swaps:
    """Call `between` after every launch of a step, before it is waited for. keep: keeps the heat for the next start."""

    def __init__(self, boxes: Boxes, heat: Heat) -> None:
        self.boxes, self.heat, self.balance = boxes, heat, Balance(boxes)
        self.swapped = 0
        self.keep: Callable[[], None] | None = None
        self._device = boxes.counts.device
        self._on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if self._on_gpu else None
        self._counts = torch.zeros_like(boxes.counts, device="cpu")
        if self._on_gpu:
            self._counts = self._counts.pin_memory()
        self._arrived: torch.cuda.Event | None = None
        self._changes: list[Change] = []
        self._steps, self._looks, self._state = 0, 0, "idle"

    def between(self) -> None:
        """Go on with what is due. Waits for nothing."""
        self._steps += 1
        if self._arrived is not None and not self._arrived.query():
            return
        if self._state == "idle" and self._steps >= EVERY:
            self._steps, self._state = 0, "counting"
            self.balance.adapt()
            self._counts.copy_(self.boxes.counts, non_blocking=True)
            self._mark(torch.cuda.current_stream(self._device) if self._on_gpu else None)
        elif self._state == "counting":
            self.heat.read(self._counts.numpy())
            self._looks += 1
            if self.keep is not None and self._looks % KEPT == 0:
                self.keep()
            self._begin()
        elif self._state == "copying":
            self._end()

    def _begin(self) -> None:
        """Choose; take the coldest out of the table; begin to copy the hottest."""
        residents, self._changes = self.boxes.residents, []
        for shape, pool in residents.pools.items():
            layers = np.array([index for index, own in enumerate(residents.shapes) if own == shape], np.int32)
            there = (residents.host.addresses[layers] != 0).all(2)
            absent = np.argwhere((residents.where[layers] < 0) & there).astype(np.int32)
            absent[:, 0] = layers[absent[:, 0]]
            held = np.flatnonzero(pool.holders[:, 0] >= 0)
            pairs = self.heat.swaps(pool.holders[held], absent, TOGETHER)
            if pairs:
                chosen = np.array(pairs)
                self._changes.append(Change(pool, absent[chosen[:, 1]], held[chosen[:, 0]]))
        self._state = "copying" if self._changes else "idle"
        if not self._changes:
            return
        leaving = np.concatenate([change.pool.holders[change.places] for change in self._changes])
        self._write(leaving, np.full(len(leaving), -1, np.int32))
        if self._stream is None:
            for change in self._changes:
                self._copy(change)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for change in self._changes:
                self._copy(change)
        self._mark(self._stream)

    def _copy(self, change: Change) -> None:
        residents, pool = self.boxes.residents, change.pool
        planes = torch.empty(len(change.entries), pool.shape.bytes, dtype=torch.uint8, device=self._device)
        residents.fetch(pool.shape, change.entries, planes)
        scales = residents.scales_of(change.entries) if pool.scales is not None else None
        pool.take(self._uploaded(change.places.astype(np.int64)), planes, scales)

    def _end(self) -> None:
        """The newcomers are there: they enter the table."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        for change in self._changes:
            change.pool.holders[change.places] = change.entries
            self.swapped += len(change.entries)
        self._write(
            np.concatenate([change.entries for change in self._changes]),
            np.concatenate([change.places for change in self._changes]).astype(np.int32),
        )
        self._changes, self._state = [], "idle"

    def _write(self, entries: np.ndarray, slots: np.ndarray) -> None:
        """Slots of experts [n, 2] (layer, expert), for the steps launched from now on."""
        residents = self.boxes.residents
        residents.where[entries[:, 0], entries[:, 1]] = slots
        places = entries[:, 0].astype(np.int64) * residents.experts + entries[:, 1]
        residents.table.view(-1).index_copy_(0, self._uploaded(places), self._uploaded(slots))

    def _uploaded(self, array: np.ndarray) -> torch.Tensor:
        host = torch.from_numpy(array)
        return host.pin_memory().to(self._device, non_blocking=True) if self._on_gpu else host

    def _mark(self, stream: torch.cuda.Stream | None) -> None:
        if stream is not None:
            self._arrived = torch.cuda.Event()
            self._arrived.record(stream)
