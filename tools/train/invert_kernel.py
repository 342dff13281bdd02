# mypy: disable-error-code="import-not-found"
"""Inverses of many small unit lower triangular matrices, row by row, on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(source, target, N: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, N)
    at = tl.program_id(0).to(tl.int64) * N * N + rows[:, None] * N + rows[None, :]
    lower = tl.load(source + at)
    result = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for row in range(1, N):
        factors = tl.sum(tl.where(rows[:, None] == row, lower, 0.0), 0)
        update = -tl.sum(factors[:, None] * result, 0)
        result += tl.where(rows[:, None] == row, update[None, :], 0.0)
    tl.store(target + at, result)


def invert_on_gpu(lower: torch.Tensor) -> torch.Tensor:
    """(I + lower)⁻¹ of strictly lower triangular float32 [..., N, N]."""
    n = lower.shape[-1]
    result = torch.empty_like(lower)
    _kernel[(lower.numel() // n**2,)](lower, result, n, num_warps=4)
    return result
