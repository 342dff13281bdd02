"""Products of many columns through torch's library: pieces of a matrix as 16-bit floats, the input scaled to fit them."""

from __future__ import annotations

import torch

from .embed import decode
from .matrix import Matrix

PIECE = 1 << 26  # weights decoded at a time


def in_half(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] as float16 of at most 1, and each row's factor float32 [T, 1]: no sum of a product then overflows."""
    largest = x.abs().amax(1, keepdim=True).clamp_min(2.0**-100)
    return (x / largest).half(), largest


def half_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """float16 x [T, K] times float16 weight [N, K] transposed, float32 [T, N], added up in float32."""
    if x.device.type == "cuda" and torch.version.hip is None:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    if x.device.type == "cuda":
        return (x @ weight.T).float()
    return x.float() @ weight.float().T


def multiply(weight: Matrix, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x float32 [T, K] times weight [N, K] transposed: [T, N]."""
    narrow, factor = in_half(x)
    if out is None:
        out = torch.empty(x.shape[0], weight.rows, device=x.device)
    height = max(1, min(weight.rows, PIECE // weight.cols))
    room = torch.empty(height, x.shape[1], dtype=torch.float16, device=x.device)
    for first in range(0, weight.rows, height):
        piece = room[: min(height, weight.rows - first)]
        torch.mul(half_product(narrow, decode(weight, piece, first)), factor, out=out[:, first : first + len(piece)])
    return out
