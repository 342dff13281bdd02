"""The router's product: few rows of plain numbers, and long ones, so that several warps share a row.

Sums have an order of their own, the same for any number of columns.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from .activation import Quantised
from .fixed import hold
from .integer import fma
from .kinds import plain_type
from .matrix import Matrix
from .plain import numbers_at
from .target import release, target, wait

STEP = 512  # numbers of a row that a program reads at once, four a lane


@triton.jit
def router_kernel(
    base, rows, cols, x, x_stride, tokens, out, stride,
    ROWS: tl.constexpr, STEP: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (i, c): ROWS rows of PIECES steps times COLUMNS of x [T, x_stride], to out [T, stride]."""
    release(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1) * COLUMNS
    k = tl.arange(0, STEP)[None, :] + row[:, None] * 0
    at = tl.minimum(row, rows - 1)[:, None] * cols + tl.arange(0, STEP)[None, :]
    weights = ()
    for i in tl.static_range(PIECES):
        weights = weights + (numbers_at(base, at + i * STEP, TYPE),)
    wait(OVERLAP)
    columns = ()
    for c in tl.static_range(COLUMNS):
        own = x + tl.minimum(token + c, tokens - 1) * x_stride + k
        for i in tl.static_range(PIECES):
            columns = columns + (tl.load(own + i * STEP),)
    hold(tokens, FORM)
    for c in tl.static_range(COLUMNS):
        total = tl.zeros([ROWS, STEP], tl.float32)
        for i in tl.static_range(PIECES):
            total = fma(weights[i], columns[c * PIECES + i], total, FORM)
        there = (row < rows) & (token + c < tokens)
        tl.store(out + (token + c) * stride + row, tl.sum(total, axis=1), mask=there)


def fits_router(router: Sequence[Matrix]) -> bool:
    """Whether `router_product` takes a router: one matrix of plain numbers whose rows are whole steps, not many."""
    [first, *others] = router
    plain = plain_type(first.type.id) and first.scale is None
    return plain and not others and first.cols % STEP == 0 and first.cols <= 16 * STEP


def router_product(router: Matrix, x: Quantised, out: torch.Tensor, rows: int = 1) -> None:
    """x [T, cols] times the router transposed, to out [T, its rows]; rows: of a program."""
    to = target(out.device)
    columns = min(triton.next_power_of_2(x.tokens), 4)
    router_kernel[(-(-router.rows // rows), -(-x.tokens // columns))](
        router.data, router.rows, router.cols, x.x, x.blocks * 32, x.tokens, out, out.stride(0),
        ROWS=rows, STEP=STEP, PIECES=router.cols // STEP, COLUMNS=columns, TYPE=router.type.id, FORM=to.form,
        OVERLAP=to.overlap, num_warps=rows * STEP // 128, **to.options,
    )  # fmt: skip
