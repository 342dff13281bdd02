"""`Slots`: routed experts in device memory, each in a slot of one size, found through a table.

    data [slots, bytes]:   gate planes | up planes | down planes      of one expert of one layer
    table [experts]:       the slot of each expert of a layer, -1 where it is absent

Everything being resident is the table being full. Where it is not (`residents.py`), layers share the slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...arch.tensor import Tensor
from ...quant import BlockType
from .matrix import Matrix, Source, upload
from .planar import LAYOUTS, repack


@dataclass(frozen=True, slots=True)
class SlotShape:
    """What lies in a slot: types and sizes of gate and up [size, hidden] and down [hidden, down_cols]."""

    gate: BlockType
    up: BlockType
    down: BlockType
    size: int
    hidden: int
    down_cols: int

    @property
    def up_at(self) -> int:
        return LAYOUTS[self.gate.name].matrix_bytes(self.size, self.hidden)

    @property
    def down_at(self) -> int:
        return self.up_at + LAYOUTS[self.up.name].matrix_bytes(self.size, self.hidden)

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Rows and columns of gate, up and down."""
        return (self.size, self.hidden), (self.size, self.hidden), (self.hidden, self.down_cols)

    @property
    def bytes(self) -> int:
        return self.down_at + LAYOUTS[self.down.name].matrix_bytes(self.hidden, self.down_cols)


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The slots of one shape, and a layer's table into them.

    scales  float32 [slots, 3]: factors of gate, up and down products, or None
    """

    shape: SlotShape
    data: torch.Tensor
    table: torch.Tensor
    scales: torch.Tensor | None = None

    def matrices(self, slot: int) -> tuple[Matrix, Matrix, Matrix]:
        """Gate, up and down of one slot."""
        shape = self.shape
        starts = (0, shape.up_at, shape.down_at, shape.bytes)
        kinds = (shape.gate, shape.up, shape.down)
        made = []
        for i, (rows, cols) in enumerate(shape.sizes):
            scale = None if self.scales is None else self.scales[slot, i].expand(rows).contiguous()
            made.append(Matrix(self.data[slot, starts[i] : starts[i + 1]], kinds[i], rows, cols, scale))
        return made[0], made[1], made[2]


def slot_shape(gate: Tensor, up: Tensor, down: Tensor) -> SlotShape:
    """The shape of slots for experts [experts, rows, cols], or for one [rows, cols]."""
    size, hidden = gate.shape[-2:]
    return SlotShape(gate.type, up.type, down.type, size, hidden, down.shape[-1])


def filled(gate: Tensor, up: Tensor, down: Tensor, device: torch.device, source: Source | None = None) -> Slots:
    """Slots that hold all experts of a layer in their order."""
    shape = slot_shape(gate, up, down)
    count = gate.shape[0] if len(gate.shape) == 3 else 1
    data = torch.empty(count, shape.bytes, dtype=torch.uint8, device=device)
    starts = (0, shape.up_at, shape.down_at, shape.bytes)
    for tensor, start, end in zip((gate, up, down), starts[:-1], starts[1:], strict=True):
        raw = source(tensor) if source else upload(tensor, device)
        repack(tensor.type, raw.reshape(count, *raw.shape[-2:]), data[:, start:end])
    table = torch.arange(count, dtype=torch.int32, device=device)
    return Slots(shape, data, table, _scales((gate, up, down), count, device))


def expert_scales(tensors: tuple[Tensor, Tensor, Tensor], count: int) -> np.ndarray | None:
    """Factors float32 [experts, 3] of gate, up and down products, or None."""
    if all(t.scale is None for t in tensors):
        return None
    columns = [
        np.ones(count, np.float32)
        if t.scale is None
        else np.broadcast_to(t.scale.astype(np.float32).reshape(-1), (count,))
        for t in tensors
    ]
    return np.stack(columns, 1)


def _scales(tensors: tuple[Tensor, Tensor, Tensor], count: int, device: torch.device) -> torch.Tensor | None:
    scales = expert_scales(tensors, count)
    return None if scales is None else torch.from_numpy(scales).to(device)
