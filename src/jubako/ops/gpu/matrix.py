"""`Matrix`: a weight in its planar layout on a device, and how it gets there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...arch.tensor import Tensor
from ...quant import BY_NAME, BlockType, decode
from .planar import LAYOUTS, repack
from .target import TENSOR, interpreted, target
from .tiles import TILES, UNIT, fits, is_tiled, to_tiles

Source = Callable[[Tensor], torch.Tensor]
"""Gives a tensor's raw blocks uint8 [..., row bytes] on the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Rows of one block type, several file tensors one under the other where they share their input.

    data   planes uint8 (planar.py), or tiles (tiles.py) where the type is one of `tiles.TILES`
    scale  float32 [rows] that products are multiplied by, or None
    """

    data: torch.Tensor
    type: BlockType
    rows: int
    cols: int
    scale: torch.Tensor | None = None

    @property
    def blocks(self) -> int:
        return -(-self.cols // 32)

    @property
    def scale_or_data(self) -> torch.Tensor:
        """What a kernel is given for `scale`; it is told apart whether that is one."""
        return self.data if self.scale is None else self.scale

    @property
    def factors(self) -> torch.Tensor:
        """A factor for each row."""
        return self.scale if self.scale is not None else torch.ones(self.rows, device=self.data.device)

    @property
    def nbytes(self) -> int:
        return self.rows * (
            self.type.row_bytes(self.cols) if is_tiled(self.type) else LAYOUTS[self.type.name].row_bytes(self.cols)
        )


def upload(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """The blocks of a tensor on the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file's map is read-only, and nothing writes to it here
        raw = torch.from_numpy(np.ascontiguousarray(tensor.data))
    return raw.to(device)


def matrix(
    tensors: Sequence[Tensor], device: torch.device, source: Source | None = None, step: int | None = UNIT
) -> Matrix:
    """The rows of tensors [rows, cols] of one type and length, one under the other; step: see `tiles.fits`, or None for
    planes."""
    kind, cols = tensors[0].type, tensors[0].shape[-1]
    assert all(t.type is kind and t.shape[-1] == cols for t in tensors)
    raws = [source(t) if source else upload(t, device) for t in tensors]
    raw = (
        raws[0].reshape(-1, raws[0].shape[-1])
        if len(raws) == 1
        else torch.cat([r.reshape(-1, r.shape[-1]) for r in raws])
    )
    rows = [r.shape[:-1].numel() for r in raws]
    scale = None
    if any(t.scale is not None for t in tensors):
        factors = [1.0 if t.scale is None else float(t.scale.reshape(-1)[0]) for t in tensors]
        scale = torch.repeat_interleave(torch.tensor(factors), torch.tensor(rows)).to(device)
    if step is not None and fits(kind, cols, step) and has_tensor_cores(device, kind):
        return Matrix(to_tiles(raw, kind), TILES[kind.name], sum(rows), cols, scale)
    return Matrix(repack(kind, raw), kind, sum(rows), cols, scale)


def beside(tensors: Sequence[Tensor], device: torch.device, source: Source | None = None) -> Matrix:
    """The columns of tensors [rows, cols], one tensor's after another's; as halves where their types differ."""
    kind, rows = tensors[0].type, tensors[0].shape[0]
    raws = [source(t) if source else upload(t, device) for t in tensors]
    cols = sum(t.shape[1] for t in tensors)
    if any(t.type is not kind or t.scale is not None for t in tensors):
        numbers = [_numbers(t, raw) for t, raw in zip(tensors, raws, strict=True)]
        half = BY_NAME["F16"]
        return Matrix(repack(half, torch.cat(numbers, 1).half().contiguous().view(torch.uint8)), half, rows, cols)
    raw = torch.cat(raws, 1)
    if fits(kind, cols) and has_tensor_cores(device, kind):
        return Matrix(to_tiles(raw, kind), TILES[kind.name], rows, cols)
    return Matrix(repack(kind, raw), kind, rows, cols)


def _numbers(tensor: Tensor, raw: torch.Tensor) -> torch.Tensor:
    """A tensor's numbers, float32 [rows, cols], of its raw blocks."""
    scale = 1.0 if tensor.scale is None else float(tensor.scale.reshape(-1)[0])
    return decode(tensor.type, raw).reshape(tensor.shape) * scale


def has_tensor_cores(device: torch.device, kind: BlockType) -> bool:
    """Whether steps multiply whole blocks of a type at once there; the interpreter does as if."""
    if interpreted():
        return True
    if target(device).form != TENSOR:
        return False
    if device.type != "cuda":  # launches are written down, not made
        return True
    from .proof import tiles_are_right  # which makes matrices itself

    return tiles_are_right(device, kind.name)


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """Weights that share their input: a matrix for each block type among them.

    order  of each weight: which matrix, its first row there, its rows
    """

    matrices: tuple[Matrix, ...]
    order: tuple[tuple[int, int, int], ...]

    @property
    def cols(self) -> int:
        return self.matrices[0].cols

    @property
    def rows(self) -> int:
        return sum(m.rows for m in self.matrices)

    @property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """Of each weight: its first column in the joint output, and its rows."""
        starts = np.cumsum([0, *(m.rows for m in self.matrices)]).tolist()
        return tuple((starts[which] + first, rows) for which, first, rows in self.order)


def projections(tensors: Sequence[Tensor], device: torch.device, source: Source | None = None) -> Projections:
    """Tensors of any types with rows of one length, grouped by type: those in tiles first, then the largest."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.type.name, []).append(tensor)
    made = {name: matrix(group, device, source) for name, group in groups.items()}
    names = sorted(made, key=lambda name: (not is_tiled(made[name].type), -made[name].nbytes))
    order = []
    for tensor in tensors:
        which = names.index(tensor.type.name)
        above = groups[tensor.type.name]
        first = sum(_rows(t) for t in above[: [id(t) for t in above].index(id(tensor))])
        order.append((which, first, _rows(tensor)))
    return Projections(tuple(made[name] for name in names), tuple(order))


def _rows(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape[:-1]))
