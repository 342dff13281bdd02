"""Random weights of any block type for both sides: the CPU's kernels, whose bits are the model, and the GPU's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from block_rows import rows_of, weight

from jubako import _cpu
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.planar import repack
from jubako.ops.gpu.slots import Slots, SlotShape
from jubako.quant import BY_NAME


def both(name: str, rows: int, cols: int, device: torch.device, seed: int = 0) -> tuple[Matrix, _cpu.Weight]:
    """A matrix, and the same for the CPU."""
    raw = rows_of(name, (rows,), cols, seed)
    return Matrix(repack(BY_NAME[name], torch.from_numpy(raw).to(device)), BY_NAME[name], rows, cols), weight(name, raw)


def slots(
    gate: str, down: str, experts: int, size: int, hidden: int, device: torch.device, down_cols: int = 0, seed: int = 0,
    up: str = "",
) -> tuple[Slots, Sequence[_cpu.Weight]]:  # fmt: skip
    """Experts in slots, in reverse, and the CPU's gate, up and down. One expert is a matrix there."""
    cols, kinds = down_cols or size, (gate, up or gate, down)
    shape = SlotShape(*(BY_NAME[kind] for kind in kinds), size, hidden, cols)
    stack = (experts,) if experts > 1 else ()
    raws = [
        rows_of(gate, (*stack, size), hidden, seed),
        rows_of(up or gate, (*stack, size), hidden, seed + 1),
        rows_of(down, (*stack, hidden), cols, seed + 2),
    ]
    data = torch.zeros(experts, shape.bytes, dtype=torch.uint8, device=device)
    ends = (0, shape.up_at, shape.down_at, shape.bytes)
    for kind, raw, start, end in zip(kinds, raws, ends[:-1], ends[1:], strict=True):
        turned = raw.reshape(experts, *raw.shape[-2:])[::-1].copy()
        repack(BY_NAME[kind], torch.from_numpy(turned).to(device), data[:, start:end])
    table = torch.arange(experts - 1, -1, -1, dtype=torch.int32, device=device)
    return Slots(shape, data, table), [weight(kind, raw) for kind, raw in zip(kinds, raws, strict=True)]


def activations(tokens: int, cols: int, seed: int = 1) -> np.ndarray:
    """float32 [T, cols] whose tokens differ in size by orders of magnitude."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((tokens, cols)) * np.exp(2 * rng.standard_normal((tokens, 1)))).astype(np.float32)


def same_bits(a: torch.Tensor, b: np.ndarray) -> bool:
    return a.cpu().numpy().tobytes() == np.ascontiguousarray(b).tobytes()
