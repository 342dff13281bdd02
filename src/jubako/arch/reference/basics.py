"""What all parts are made of: weights on demand, products, norms, rotation, short convolutions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import psutil
import torch

from ...files.tensors import StoredTensor
from ..tensor import Tensor

Weight = StoredTensor | torch.Tensor
PIECE = 1 << 26  # weights decoded at once: larger matrices go through `linear` in pieces


class DecodedWeights:
    """The most recently used decoded weights, at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.entries: OrderedDict[tuple[int, int], tuple[StoredTensor, torch.Tensor]] = OrderedDict()

    def get(self, weight: StoredTensor, expert: int = -1) -> torch.Tensor:
        """All of `weight`, or one of its experts. The stored tensor is held too, so that its id stays its own."""
        key = (id(weight), expert)
        entry = self.entries.get(key)
        if entry is not None:
            self.entries.move_to_end(key)
            return entry[1]
        values = _leaf(weight).float32() if expert < 0 else _leaf(weight).expert(expert)
        self.entries[key] = (weight, values)
        self.held += values.nbytes
        while self.held > self.limit and len(self.entries) > 1:
            self.held -= self.entries.popitem(last=False)[1][1].nbytes
        return values


_decoded = DecodedWeights(min(psutil.virtual_memory().available // 4, 8 << 30))


def _leaf(weight: StoredTensor) -> Tensor:
    return weight if isinstance(weight, Tensor) else Tensor.of(weight)


def float32(weight: Weight) -> torch.Tensor:
    """A weight as float32, decoded at most once in a while."""
    return weight.float() if isinstance(weight, torch.Tensor) else _decoded.get(weight)


def expert_float32(weight: Weight, index: int) -> torch.Tensor:
    """One expert [rows, columns] of [experts, rows, columns]."""
    return weight[index].float() if isinstance(weight, torch.Tensor) else _decoded.get(weight, index)


def embed(weight: Weight, ids: Sequence[int] | np.ndarray) -> torch.Tensor:
    """Rows `ids` [T] of `weight`: [T, columns]."""
    index = np.asarray(ids, dtype=np.int64)
    if isinstance(weight, torch.Tensor):
        return weight[torch.from_numpy(index)].float()
    return _leaf(weight).rows(index)


def linear(weight: Weight, x: torch.Tensor) -> torch.Tensor:
    """x [T, K] times weight [N, K] transposed: [T, N]."""
    rows, columns = weight.shape
    if isinstance(weight, torch.Tensor) or rows * columns <= PIECE:
        return x @ float32(weight).T
    step = max(1, PIECE // columns)
    pieces = (_leaf(weight).row_range(start, min(start + step, rows)) for start in range(0, rows, step))
    return torch.cat([x @ piece.float32().T for piece in pieces], dim=-1)


def linear_many(weights: Sequence[Weight], x: torch.Tensor) -> list[torch.Tensor]:
    """Several products of one input."""
    return [linear(weight, x) for weight in weights]


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """x over its root mean square along the last dimension, times gamma."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma


def rope(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, magnitude: float = 1.0) -> torch.Tensor:
    """Rotate x [T, heads, D] to `positions` [T]: element i pairs with i + n, n = len(frequencies); the rest stays."""
    n = len(frequencies)
    angle = positions.float()[:, None] * frequencies
    cos, sin = angle.cos()[:, None] * magnitude, angle.sin()[:, None] * magnitude
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def causal_conv(x: torch.Tensor, taps: torch.Tensor, past: torch.Tensor, dilation: int = 1) -> torch.Tensor:
    """Depthwise convolution over tokens: x [T, C], taps [C, K], the last tap on the token itself.

    past [(K-1)*dilation, C] are the columns before x, oldest first; it is moved on in place.
    """
    line = torch.cat([past, x])
    past.copy_(line[len(x) :])
    result = torch.zeros_like(x)
    for k in range(taps.shape[1]):
        result += taps[:, k] * line[k * dilation : k * dilation + len(x)]
    return result
