"""Products of many columns through torch's library: pieces of matrices as float16, sums in float32.

No half overflows: inputs are float16 of known range, or scaled to at most 1 row by row; outputs are float32.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .embed import decode
from .matrix import Matrix

PIECE = 1 << 26  # weights decoded at a time
WIDE = 16.0  # products kept as halves are that much smaller


@dataclass(frozen=True, slots=True)
class Halves:
    """The input of a prompt's products: x float16 [T, K], and the factor [T, 1] of each row, None for 1."""

    x: torch.Tensor
    factor: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        return int(self.x.shape[0])

    def plain(self) -> torch.Tensor:
        """The numbers, float32 [T, K]."""
        return self.x.float() if self.factor is None else self.x.float() * self.factor


@triton.jit
def narrow_kernel(x, stride, narrow, factor, width, SIZE: tl.constexpr):
    """Program t: a row over its largest magnitude, as float16, and that magnitude."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, SIZE)
    value = tl.load(x + token * stride + k, mask=k < width, other=0.0)
    largest = tl.maximum(tl.max(tl.abs(value), axis=0), 7.888609052210118e-31)  # 2^-100
    tl.store(narrow + token * width + k, (value / largest).to(tl.float16), mask=k < width)
    tl.store(factor + token, largest)


def in_half(x: torch.Tensor) -> Halves:
    """Any x [T, K] as float16 of at most 1."""
    tokens, width = x.shape
    assert x.stride(1) == 1
    narrow = torch.empty(tokens, width, dtype=torch.float16, device=x.device)
    factor = torch.empty(tokens, 1, device=x.device)
    narrow_kernel[(tokens,)](
        x, x.stride(0), narrow, factor, width, SIZE=triton.next_power_of_2(width), num_warps=4 if width < 8192 else 8
    )
    return Halves(narrow, factor)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """float16 x [T, K] times float16 weight [N, K] transposed, float32 [T, N], added up in float32."""
    if x.device.type == "cuda" and torch.version.hip is None:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    if x.device.type == "cuda":
        return (x @ weight.T).float()
    return x.float() @ weight.float().T


def halves(matrices: Sequence[Matrix]) -> torch.Tensor:
    """Their rows as float16, one under the other; the last again up to a multiple of eight rows, as fast products want
    them."""
    rows, last = sum(m.rows for m in matrices), matrices[-1]
    out = torch.empty(-(-rows // 8) * 8, last.cols, dtype=torch.float16, device=last.data.device)
    at = 0
    for matrix in matrices[:-1]:
        decode(matrix, out[at : at + matrix.rows])
        at += matrix.rows
    decode(last, out[at:])
    return out


def multiply_narrow(matrices: Sequence[Matrix], x: Halves) -> torch.Tensor:
    """As `multiply`, for inputs of a norm's size: float16 [T, rows], the products over WIDE, so that none overflows."""
    assert x.factor is None
    weight, rows = halves(matrices), sum(m.rows for m in matrices)
    if x.x.device.type != "cuda":
        return (product(x.x, weight) / WIDE).half()[:, :rows]
    out = torch.empty(x.tokens, len(weight), dtype=torch.float16, device=x.x.device)
    return out.addmm_(x.x, weight.T, beta=0, alpha=1 / WIDE)[:, :rows]


def multiply(matrices: Sequence[Matrix], x: torch.Tensor | Halves) -> torch.Tensor:
    """x [T, K] times the rows of matrices that lie one under the other: float32 [T, rows], rows of it may lie apart."""
    read = x if isinstance(x, Halves) else in_half(x)
    rows, cols = sum(m.rows for m in matrices), matrices[0].cols
    if rows * cols <= PIECE or len(matrices) > 1:
        out = product(read.x, halves(matrices))[:, :rows]
    else:
        [matrix], height = matrices, PIECE // cols // 8 * 8
        out = torch.empty(read.tokens, rows, device=read.x.device)
        room = torch.empty(height, cols, dtype=torch.float16, device=read.x.device)
        for first in range(0, rows, height):
            piece = decode(matrix, room[: min(height, rows - first)], first)
            out[:, first : first + len(piece)] = product(read.x, piece)
    return out if read.factor is None else out.mul_(read.factor)
