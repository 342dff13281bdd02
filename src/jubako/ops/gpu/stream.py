"""`ExpertStream`: experts without a slot on their way through video memory, for prompts, while others are computed.

    main memory ──copy stream──► raw buffers ──repack stream──► ring ──► experts of the layer, in turns
                                  ▲ free when repacked           ▲ free when its turn was computed

A turn is a group of a layer's absent experts. Turns of all layers follow each other through the ring, so the link goes
on while layers compute something else. On a CPU everything happens in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from .host import bytes_at
from .repack import repack_into
from .residents import Residents
from .slots import Slots, SlotShape

TOGETHER = 64  # experts of a turn, of the usual shape, unless fewer are asked for
TURNS = 4  # that the ring holds: what the link brings while a layer attends
BUFFERS = 2  # raw buffers


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


class Place:
    """Memory with the moments when it was filled, and when it may be filled again."""

    def __init__(self, data: torch.Tensor, on_gpu: bool) -> None:
        self.data, self.filled, self.free = data, Moment(on_gpu), Moment(on_gpu)


class Turn(NamedTuple):
    """Some absent experts of a layer."""

    layer: int
    experts: np.ndarray


class ExpertStream:
    """Brings what `residents` lack. A prompt's layers take their turns in order; another order only waits longer.

    together: experts of a turn, TOGETHER by default: fewer need less video memory.
    """

    def __init__(self, residents: Residents, together: int | None = None) -> None:
        self.residents = residents
        device = residents.device
        self._on_gpu = device.type == "cuda"
        self._copying = torch.cuda.Stream(device) if self._on_gpu else None
        self._repacking = torch.cuda.Stream(device) if self._on_gpu else None
        usual = max(residents.shapes, key=residents.shapes.count)
        together = min(together or TOGETHER, residents.experts)
        room = max(together * usual.bytes, *(shape.bytes for shape in residents.shapes))
        raw = max(together * raw_bytes(usual), *(raw_bytes(shape) for shape in residents.shapes))
        self._together = {s: min(room // s.bytes, raw // raw_bytes(s), residents.experts) for s in residents.pools}
        self._buffers = self._places(BUFFERS, raw)
        self._ring = self._places(TURNS, room)
        self._scales = None if residents.scales is None else torch.from_numpy(residents.scales).to(device)
        self._turns: list[Turn] = []
        self._sent = self._taken = 0
        self._stacks: dict[tuple[int, int], torch.Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of video memory that it holds."""
        return sum(place.data.nbytes for place in (*self._buffers, *self._ring))

    def begin(self, layer: int = 0) -> None:
        """A prompt's next piece begins, with this layer: its experts may come."""
        lacking = self.residents.where < 0
        self._turns = []
        for number in range(layer, len(lacking)):
            absent, together = np.flatnonzero(lacking[number]), self._together[self.residents.shapes[number]]
            firsts = range(0, len(absent), together)
            self._turns += [Turn(number, absent[first : first + together]) for first in firsts]
        self._sent = self._taken = 0
        self._send()

    def turns(self, layer: int) -> Iterator[Slots]:
        """A layer's experts in turns, those with slots first. What this stream is given before the next turn is asked
        for finds them in the slots; the tables say which experts are there."""
        residents = self.residents
        if (residents.where[layer] >= 0).any():
            yield residents.slots(layer)
        absent = residents.where[layer] < 0
        if not absent.any():
            return
        if self._taken == len(self._turns) or self._turns[self._taken].layer != layer:
            self.begin(layer)
        shape = residents.shapes[layer]
        for table in self._tables(layer, int(absent.sum())):
            turn, place = self._turns[self._taken], self._ring[self._taken % TURNS]
            place.filled.wait()
            yield Slots(shape, self._slots(place, shape), table, self._factors(turn))
            place.free.mark()
            self._taken += 1
            self._send()

    def _tables(self, layer: int, count: int) -> torch.Tensor:
        """Of each turn of `count` absent experts int32 [turns, experts]: an expert's place in it, -1 for others."""
        together = self._together[self.residents.shapes[layer]]
        absent = self.residents.table[layer] < 0
        number = absent.cumsum(0, dtype=torch.int32) - 1
        turn = torch.arange(-(-count // together), device=number.device)[:, None]
        return torch.where(absent & (number // together == turn), number % together, -1)

    def _factors(self, turn: Turn) -> torch.Tensor | None:
        if self._scales is None:
            return None
        return self._scales[turn.layer].index_select(0, torch.from_numpy(turn.experts).to(self._scales.device))

    def _send(self) -> None:
        """Send turns on their way as long as the ring has places."""
        host = self.residents.host
        while self._sent < min(self._taken + TURNS, len(self._turns)):
            turn, buffer = self._turns[self._sent], self._buffers[self._sent % BUFFERS]
            place = self._ring[self._sent % TURNS]
            with self._in(self._copying):
                buffer.free.wait()
                for part in host.present(turn.layer, turn.experts):
                    if host.expect is not None and self._sent + 1 < len(self._turns):
                        host.expect(*self._turns[self._sent + 1])
                    self._copy(turn, part, buffer.data)
                    if self._copying is not None and not host.fixed:
                        self._copying.synchronize()
                buffer.filled.mark()
            with self._in(self._repacking):
                buffer.filled.wait()
                place.free.wait()
                self._repack(turn, buffer.data, place)
                buffer.free.mark()
                place.filled.mark()
            self._sent += 1

    def _copy(self, turn: Turn, which: slice, raw: torch.Tensor) -> None:
        experts = turn.experts[which]
        for part, (area, each) in enumerate(self._areas(turn, raw)):
            stack, addresses = self._stack(turn.layer, part, each), self.residents.host.addresses[turn.layer, :, part]
            mine = area[which.start * each : which.stop * each]
            for first, last in _runs(experts, stack is None):
                number = int(experts[first])
                stored = bytes_at(int(addresses[number]), each) if stack is None else stack[number * each :]
                mine[first * each : last * each].copy_(stored[: (last - first) * each], non_blocking=True)

    def _repack(self, turn: Turn, raw: torch.Tensor, place: Place) -> None:
        shape = self.residents.shapes[turn.layer]
        starts, kinds = (0, shape.up_at, shape.down_at, shape.bytes), (shape.gate, shape.up, shape.down)
        slots = self._slots(place, shape)[: len(turn.experts)]
        for part, (area, each) in enumerate(self._areas(turn, raw)):
            rows = shape.sizes[part][0]
            blocks = area.view(len(turn.experts), rows, each // rows)
            repack_into(kinds[part], blocks, slots[:, starts[part] : starts[part + 1]])

    def _areas(self, turn: Turn, raw: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
        """Gate, up and down of the turn's experts in a raw buffer, and the bytes of one expert's."""
        start, count = 0, len(turn.experts)
        for each in part_bytes(self.residents.shapes[turn.layer]):
            yield raw[start : start + count * each], each
            start += count * each

    def _slots(self, place: Place, shape: SlotShape) -> torch.Tensor:
        """A place of the ring as slots of a shape."""
        together = self._together[shape]
        return place.data[: together * shape.bytes].view(together, shape.bytes)

    def _stack(self, layer: int, part: int, each: int) -> torch.Tensor | None:
        """All experts of a part, if they lie side by side in main memory."""
        key = (layer, part)
        if key not in self._stacks:
            addresses = self.residents.host.addresses[layer, :, part].astype(np.int64)
            side_by_side = self.residents.host.fixed and bool((np.diff(addresses) == each).all())
            self._stacks[key] = bytes_at(int(addresses[0]), len(addresses) * each) if side_by_side else None
        return self._stacks[key]

    def _places(self, count: int, size: int) -> list[Place]:
        device = self.residents.device
        return [Place(torch.empty(size, dtype=torch.uint8, device=device), self._on_gpu) for _ in range(count)]

    def _in(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()


def part_bytes(shape: SlotShape) -> tuple[int, int, int]:
    """Bytes of one expert's gate, up and down in the file."""
    kinds = (shape.gate, shape.up, shape.down)
    gate, up, down = (rows * kind.row_bytes(cols) for kind, (rows, cols) in zip(kinds, shape.sizes, strict=True))
    return gate, up, down


def raw_bytes(shape: SlotShape) -> int:
    """Bytes of one expert in the file."""
    return sum(part_bytes(shape))


def _runs(experts: np.ndarray, singly: bool) -> Sequence[tuple[int, int]]:
    """Places [first, last) of numbers that follow each other; or each by itself."""
    if singly:
        return [(place, place + 1) for place in range(len(experts))]
    ends = [*(np.flatnonzero(np.diff(experts) != 1) + 1).tolist(), len(experts)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
