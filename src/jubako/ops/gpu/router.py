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
from .room import added, elsewhere, found, leave, own_room
from .target import release, target, wait

STEP = 512  # numbers of a row that a program reads at once, four a lane


@triton.jit
def router_kernel(
    base, rows, cols, x, x_stride, tokens, out, stride, outside,
    ROWS: tl.constexpr, STEP: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr,
    TYPE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (i, c): ROWS rows of PIECES steps times COLUMNS of x [T, x_stride], to out [T, stride]. A warp has an
    equal part of each step."""
    release(OVERLAP)
    WARPS: tl.constexpr = STEP // 128
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1) * COLUMNS
    room = own_room(outside, tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), WORDS, FORM)
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
    hold(rows, FORM)
    at = tl.arange(0, ROWS * WARPS)
    for c in tl.static_range(COLUMNS):
        total = tl.zeros([ROWS, STEP], tl.float32)
        for i in tl.static_range(PIECES):
            total = fma(weights[i], columns[c * PIECES + i], total, FORM)
        y = tl.sum(tl.reshape(total, [ROWS * WARPS, 128]), axis=1)
        leave(room, c * (ROWS * WARPS) + at, y, at >= 0, FORM)
    tl.debug_barrier()
    n = tl.arange(0, COLUMNS * ROWS)
    parts = ()
    for i in tl.static_range(WARPS):
        parts = parts + (found(room, n * WARPS + i, FORM),)
    own, c = tl.program_id(0) * ROWS + n % ROWS, token + n // ROWS
    tl.store(out + c * stride + own, added(parts), mask=(own < rows) & (c < tokens))


def fits_router(router: Sequence[Matrix]) -> bool:
    """Whether `router_product` takes a router: one matrix of plain numbers whose rows are whole steps, not many."""
    [first, *others] = router
    plain = plain_type(first.type.id) and first.scale is None
    return plain and not others and first.cols % STEP == 0 and first.cols <= 16 * STEP


def router_product(router: Matrix, x: Quantised, out: torch.Tensor, rows: int = 1) -> None:
    """x [T, cols] times the router transposed, to out [T, its rows]; rows: of a program."""
    to = target(out.device)
    columns = min(triton.next_power_of_2(x.tokens), 4)
    words = columns * rows * STEP // 128
    grid = (-(-router.rows // rows), -(-x.tokens // columns))
    router_kernel[grid](
        router.data, router.rows, router.cols, x.x, x.blocks * 32, x.tokens, out, out.stride(0),
        elsewhere(to, grid[0] * grid[1], words, out.device),
        ROWS=rows, STEP=STEP, PIECES=router.cols // STEP, COLUMNS=columns, WORDS=words, TYPE=router.type.id,
        FORM=to.form, OVERLAP=to.overlap, num_warps=rows * STEP // 128, **to.options,
    )  # fmt: skip
