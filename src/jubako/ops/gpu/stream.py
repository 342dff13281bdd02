"""`ExpertStream`: a prompt's experts on their way through video memory, under the compute of the layer before.

    main memory ──copy stream──► raw buffers ──repack stream──► spare slots ──► experts of the layer
                                  │  ▲ free when repacked            ▲ free when the layer before is done
                                  └──┘

The raw buffers let the link go on while slots are in use; repacking takes a twentieth of copying. On a CPU everything
happens in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .host import bytes_at
from .repack import repack_into
from .residents import Residents
from .slots import Slots, SlotShape

TOGETHER = 64  # experts in a raw buffer
BUFFERS = 4  # of them; at 53 GB/s they hold 10 ms of copying


class Moment:
    """A point in one stream that others wait for; nothing on a CPU."""

    def __init__(self, on_gpu: bool) -> None:
        self._event = torch.cuda.Event() if on_gpu else None
        self._passed = False

    def mark(self) -> None:
        """What this stream has been given up to now."""
        if self._event is not None:
            self._event.record()
            self._passed = True

    def wait(self) -> None:
        """This stream goes on when the latest mark is reached; at once without one."""
        if self._event is not None and self._passed:
            self._event.wait()


@dataclass
class Buffer:
    """Raw blocks of some experts, uint8, all gates, then all ups, then all downs."""

    data: torch.Tensor
    copied: Moment
    free: Moment


@dataclass
class Raw:
    """Sizes of one expert's parts in the file: rows and bytes of a row."""

    sizes: tuple[tuple[int, int], ...]
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(rows * row for rows, row in self.sizes)

    @classmethod
    def of(cls, shape: SlotShape) -> Raw:
        """Of the experts that slots of this shape hold."""
        gate, up = shape.gate.row_bytes(shape.hidden), shape.up.row_bytes(shape.hidden)
        return cls(((shape.size, gate), (shape.size, up), (shape.hidden, shape.down.row_bytes(shape.down_cols))))


class ExpertStream:
    """Feeds the spare slots of `residents`. Layers of a prompt ask in their order; another order only waits longer."""

    def __init__(self, residents: Residents) -> None:
        self.residents = residents
        device = residents.device
        self._on_gpu = device.type == "cuda"
        self._copying = torch.cuda.Stream(device) if self._on_gpu else None
        self._repacking = torch.cuda.Stream(device) if self._on_gpu else None
        self._raw = {shape: Raw.of(shape) for shape in residents.pools}
        size = TOGETHER * max(raw.bytes for raw in self._raw.values())
        self._buffers = [
            Buffer(torch.empty(size, dtype=torch.uint8, device=device), self._moment(), self._moment())
            for _ in range(BUFFERS)
        ]
        self._next = 0
        self._ready = self._moment()
        self._free = {shape: self._moment() for shape in residents.pools}
        self._fed = -1
        self._scales = None if residents.scales is None else torch.from_numpy(residents.scales).to(device)
        self._stacks: dict[tuple[int, int], torch.Tensor | None] = {}

    def begin(self) -> None:
        """A chunk of a prompt begins: its first layer's experts may come."""
        self._feed(0)

    def whole(self, layer: int) -> Slots:
        """Slots with all experts of a layer; what this stream is given from now on finds them there, until `done`."""
        if self._fed != layer:
            self._feed(layer)
        self._ready.wait()
        residents, pool = self.residents, self.residents.pool(layer)
        table = residents.table[layer]
        absent = table < 0
        spare = pool.slots - 1 + absent.cumsum(0, dtype=torch.int32)
        places = torch.where(absent, spare, table)
        if pool.scales is not None and self._scales is not None:
            pool.scales.index_copy_(0, places, self._scales[layer])
        return Slots(pool.shape, pool.data, places, pool.scales)

    def done(self, layer: int) -> None:
        """Everything that reads the layer's slots was given to this stream: the next layer's experts may come."""
        self._free[self.residents.shapes[layer]].mark()
        self._fed = -1
        if layer + 1 < len(self.residents.shapes):
            self._feed(layer + 1)

    def _feed(self, layer: int) -> None:
        """Send the absent experts of a layer on their way, in the order of `whole`'s table."""
        pool, shape = self.residents.pool(layer), self.residents.shapes[layer]
        absent = np.flatnonzero(self.residents.where[layer] < 0)
        for first in range(0, len(absent), TOGETHER):
            experts = absent[first : first + TOGETHER]
            buffer = self._buffers[self._next % BUFFERS]
            self._next += 1
            with self._in(self._copying):
                buffer.free.wait()
                self._copy(layer, experts, buffer)
                buffer.copied.mark()
            with self._in(self._repacking):
                buffer.copied.wait()
                if first == 0:
                    self._free[shape].wait()
                self._repack(layer, experts, buffer, slice(pool.slots + first, pool.slots + first + len(experts)))
                buffer.free.mark()
        with self._in(self._repacking):
            self._ready.mark()
        self._fed = layer

    def _copy(self, layer: int, experts: np.ndarray, buffer: Buffer) -> None:
        for part, raw, each in self._areas(layer, len(experts), buffer):
            stack, addresses = self._stack(layer, part, each), self.residents.host.addresses[layer, :, part]
            for first, last in _runs(experts, stack is None):
                number = int(experts[first])
                stored = bytes_at(int(addresses[number]), each) if stack is None else stack[number * each :]
                raw[first * each : last * each].copy_(stored[: (last - first) * each], non_blocking=True)

    def _repack(self, layer: int, experts: np.ndarray, buffer: Buffer, slots: slice) -> None:
        pool, shape = self.residents.pool(layer), self.residents.shapes[layer]
        starts = (0, shape.up_at, shape.down_at, shape.bytes)
        kinds = (shape.gate, shape.up, shape.down)
        for part, raw, each in self._areas(layer, len(experts), buffer):
            rows = self._raw[shape].sizes[part][0]
            blocks = raw.view(len(experts), rows, each // rows)
            repack_into(kinds[part], blocks, pool.data[slots, starts[part] : starts[part + 1]])

    def _areas(self, layer: int, count: int, buffer: Buffer) -> Iterator[tuple[int, torch.Tensor, int]]:
        """Each part of `count` experts in a buffer: its number, its bytes, and those of one expert."""
        start = 0
        for part, (rows, row_bytes) in enumerate(self._raw[self.residents.shapes[layer]].sizes):
            each = rows * row_bytes
            yield part, buffer.data[start : start + count * each], each
            start += count * each

    def _stack(self, layer: int, part: int, each: int) -> torch.Tensor | None:
        """All experts of a part, if they lie side by side in main memory."""
        key = (layer, part)
        if key not in self._stacks:
            addresses = self.residents.host.addresses[layer, :, part].astype(np.int64)
            side_by_side = bool((np.diff(addresses) == each).all())
            self._stacks[key] = bytes_at(int(addresses[0]), len(addresses) * each) if side_by_side else None
        return self._stacks[key]

    def _moment(self) -> Moment:
        return Moment(self._on_gpu)

    def _in(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _runs(experts: np.ndarray, singly: bool) -> Sequence[tuple[int, int]]:
    """Places [first, last) of numbers that follow each other; or each by itself."""
    if singly:
        return [(place, place + 1) for place in range(len(experts))]
    ends = [*(np.flatnonzero(np.diff(experts) != 1) + 1).tolist(), len(experts)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
