"""`Residents`: which experts have a slot when there are fewer slots than experts, and how they get into one.

pools    slots of one shape, which all layers with experts of that shape share; `spare` more for what a step fetches
table    int32 [layers, experts] on the device, -1 where an expert has no slot
where    the same on the host, as the table will be once all that was launched is done
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...arch import weights as arch
from .host import HostExperts, bytes_at
from .repack import repack_into
from .slots import Slots, SlotShape, expert_scales, slot_shape

TOGETHER = 32  # experts copied and repacked at a time


class Pool:
    """Slots of one shape. data uint8 [slots + spare, bytes]; holders int32 [slots, 2]: layer and expert, -1 if free."""

    def __init__(self, shape: SlotShape, slots: int, spare: int, scaled: bool, device: torch.device) -> None:
        self.shape, self.slots = shape, slots
        self.data = torch.empty(slots + spare, shape.bytes, dtype=torch.uint8, device=device)
        self.scales = torch.ones(slots + spare, 3, device=device) if scaled else None
        self.holders = np.full((slots, 2), -1, np.int32)

    def take(self, places: torch.Tensor, planes: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Put experts [n, bytes] into slots."""
        self.data.index_copy_(0, places, planes)
        if self.scales is not None and scales is not None:
            self.scales.index_copy_(0, places, scales)


class Residents:
    """See the module."""

    def __init__(
        self, layers: Sequence[arch.Experts], host: HostExperts, slots: int, device: torch.device, spare: int = 0
    ) -> None:
        """slots: of all layers together, shared out by layers where shapes differ; spare: of each shape."""
        self.host, self.device = host, device
        self.experts = layers[0].gate.shape[0]
        self.shapes = [slot_shape(e.gate, e.up, e.down) for e in layers]
        factors = [expert_scales((e.gate, e.up, e.down), self.experts) for e in layers]
        self.scales = None
        if any(f is not None for f in factors):
            self.scales = np.stack([np.ones((self.experts, 3), np.float32) if f is None else f for f in factors])
        self.pools: dict[SlotShape, Pool] = {}
        for shape in dict.fromkeys(self.shapes):
            count = self.shapes.count(shape)
            most = count * self.experts
            self.pools[shape] = Pool(
                shape, min(most, slots * count // len(layers)), spare, self.scales is not None, device
            )
        self.where = np.full((len(layers), self.experts), -1, np.int32)
        self.table = torch.full(self.where.shape, -1, dtype=torch.int32, device=device)

    def slots(self, layer: int) -> Slots:
        """A layer's view of its pool."""
        pool = self.pool(layer)
        return Slots(pool.shape, pool.data, self.table[layer], pool.scales)

    def pool(self, layer: int) -> Pool:
        """The pool that holds experts of a layer."""
        return self.pools[self.shapes[layer]]

    def fill(self, wanted: np.ndarray) -> None:
        """Give slots to experts [n, 2] (layer, expert) in this order, as long as there are free ones. Waits."""
        taken: dict[SlotShape, list[tuple[int, int]]] = {shape: [] for shape in self.pools}
        for layer, expert in wanted.tolist():
            mine = taken[self.shapes[layer]]
            if len(mine) < self.pools[self.shapes[layer]].slots:
                mine.append((layer, expert))
        for shape, entries in taken.items():
            pool = self.pools[shape]
            for first in range(0, len(entries), TOGETHER):
                part = np.array(entries[first : first + TOGETHER], np.int32)
                places = np.arange(first, first + len(part))
                self.fetch(pool.shape, part, pool.data[first : first + len(part)])
                if pool.scales is not None:
                    pool.scales[first : first + len(part)] = self.scales_of(part)
                pool.holders[places] = part
                self.where[part[:, 0], part[:, 1]] = places
        self.table.copy_(torch.from_numpy(self.where))

    def fetch(self, shape: SlotShape, entries: np.ndarray, out: torch.Tensor) -> None:
        """Planes of experts [n, 2] (layer, expert) of one shape from main memory to out [n, bytes], in this stream."""
        if self.host.bring is None:
            self._fetch(shape, entries, out)
            return
        for place, (layer, expert) in enumerate(entries.tolist()):
            for _ in self.host.present(layer, np.array([expert])):
                self._fetch(shape, entries[place : place + 1], out[place : place + 1])
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()

    def _fetch(self, shape: SlotShape, entries: np.ndarray, out: torch.Tensor) -> None:
        starts = (0, shape.up_at, shape.down_at, shape.bytes)
        kinds = (shape.gate, shape.up, shape.down)
        for part, (kind, (rows, cols)) in enumerate(zip(kinds, shape.sizes, strict=True)):
            each = rows * kind.row_bytes(cols)
            raw = torch.empty(len(entries), each, dtype=torch.uint8, device=self.device)
            places = self.host.addresses[entries[:, 0], entries[:, 1], part].astype(np.int64)
            assert places.all(), "an expert without a place in main memory"
            ends = [*(np.flatnonzero(np.diff(places) != each) + 1).tolist(), len(places)]
            first = 0
            for end in ends:
                run = bytes_at(int(places[first]), (end - first) * each)
                raw[first:end].view(-1).copy_(run, non_blocking=True)
                first = end
            repack_into(kind, raw.view(len(entries), rows, -1), out[:, starts[part] : starts[part + 1]])

    def scales_of(self, entries: np.ndarray) -> torch.Tensor:
        """float32 [n, 3] of experts [n, 2]."""
        assert self.scales is not None
        return torch.from_numpy(self.scales[entries[:, 0], entries[:, 1]]).to(self.device)


def spread(layers: int, experts: int) -> np.ndarray:
    """All experts [n, 2] (layer, expert), the first of every layer first: for when nothing is known of their use."""
    expert, layer = np.divmod(np.arange(layers * experts, dtype=np.int32), layers)
    return np.stack([layer, expert], 1)
