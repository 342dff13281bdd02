"""Products of many columns through torch's library: pieces of a matrix as float16, the input scaled to fit."""

# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .embed import decode
from .matrix import Matrix

PIECE = 1 << 26  # weights decoded at a time


@triton.jit
def narrow_kernel(x, stride, narrow, factor, width, SIZE: tl.constexpr):
    """Program t: a row over its largest magnitude, as float16, and that magnitude."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, SIZE)
    value = tl.load(x + token * stride + k, mask=k < width, other=0.0)
    largest = tl.maximum(tl.max(tl.abs(value), axis=0), 7.888609052210118e-31)  # 2^-100
    tl.store(narrow + token * width + k, (value / largest).to(tl.float16), mask=k < width)
    tl.store(factor + token, largest)


def in_half(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] as float16 of at most 1, and each row's factor float32 [T, 1]: no sum of a product then overflows."""
    tokens, width = x.shape
    assert x.stride(1) == 1
    narrow = torch.empty(tokens, width, dtype=torch.float16, device=x.device)
    factor = torch.empty(tokens, 1, device=x.device)
    narrow_kernel[(tokens,)](
        x, x.stride(0), narrow, factor, width, SIZE=triton.next_power_of_2(width), num_warps=4 if width < 8192 else 8
    )
    return narrow, factor


def half_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """float16 x [T, K] times float16 weight [N, K] transposed, float32 [T, N], added up in float32."""
    if x.device.type == "cuda" and torch.version.hip is None:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    if x.device.type == "cuda":
        return (x @ weight.T).float()
    return x.float() @ weight.float().T


def multiply(weight: Matrix, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x float32 [T, K] times weight [N, K] transposed: [T, N]."""
    return multiply_half(weight, in_half(x), out)


def multiply_half(
    weight: Matrix, scaled: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None = None
) -> torch.Tensor:
    """The same of what `in_half` gave."""
    narrow, factor = scaled
    if out is None:
        out = torch.empty(narrow.shape[0], weight.rows, device=narrow.device)
    height = max(1, min(weight.rows, PIECE // weight.cols))
    room = torch.empty(height, narrow.shape[1], dtype=torch.float16, device=narrow.device)
    for first in range(0, weight.rows, height):
        piece = room[: min(height, weight.rows - first)]
        torch.mul(half_product(narrow, decode(weight, piece, first)), factor, out=out[:, first : first + len(piece)])
    return out
