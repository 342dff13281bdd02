"""Rows of plain numbers times columns: a warp has a row, four sums a lane, all of the row on its way at once.

Sums have an order of their own, the same for any number of columns.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .integer import fma
from .kinds import is_
from .target import wait

PIECE = 128  # numbers of a row that a warp loads at once


@triton.jit
def numbers_at(base, at, TYPE: tl.constexpr):
    """Plain numbers `at` as float32."""
    if is_(TYPE, "F32"):
        return tl.load(base.to(tl.pointer_type(tl.float32)) + at)
    elif is_(TYPE, "F16"):
        return tl.load(base.to(tl.pointer_type(tl.float16)) + at).to(tl.float32)
    else:
        return tl.load(base.to(tl.pointer_type(tl.bfloat16)) + at).to(tl.float32)


@triton.jit
def fetch_plain(base, cols, row, first, PIECES: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """Numbers `first` on of rows [N]: a tuple of PIECES of float32 [N, 128]. Rows have `cols`; EVEN: all are there."""
    pieces = ()
    at = row[:, None] * cols + first + tl.arange(0, 128)[None, :]
    left = cols - first - tl.arange(0, 128)[None, :] + 0 * row[:, None]
    for u in tl.static_range(PIECES):
        if is_(TYPE, "F32"):
            pointer = base.to(tl.pointer_type(tl.float32)) + at + u * 128
        elif is_(TYPE, "F16"):
            pointer = base.to(tl.pointer_type(tl.float16)) + at + u * 128
        else:
            pointer = base.to(tl.pointer_type(tl.bfloat16)) + at + u * 128
        pieces = pieces + (tl.load(pointer),) if EVEN else pieces + (tl.load(pointer, mask=left > u * 128, other=0.0),)
    return pieces


@triton.jit
def meet_plain(
    totals, pieces, numbers, stride, valid, row, token, tokens, first, EVEN: tl.constexpr, FORM: tl.constexpr
):
    """The sums [N, 128] of each column, a tuple, after some pieces more. valid: numbers of a column."""
    after = ()
    k = first + tl.arange(0, 128)[None, :] + 0 * row[:, None]  # every warp loads for itself, as weights lie
    for c in tl.static_range(len(totals)):
        total = totals[c]
        column = numbers + tl.minimum(token + c, tokens - 1) * stride + k
        for u in tl.static_range(len(pieces)):
            x = tl.load(column + u * 128) if EVEN else tl.load(column + u * 128, mask=k < valid - u * 128, other=0.0)
            total = fma(pieces[u].to(tl.float32), x, total, FORM)
        after = after + (total,)
    return after


@triton.jit
def plain_rows(
    base, rows, blocks, top, x, token, tokens, first,
    PIECES: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `top` on over PIECES pieces from number `first` on, STEP at a time: a tuple of float32 [ROWS].

    Waits for earlier kernels once its first numbers are on their way.
    """
    numbers, x_blocks, valid = x[3], x[4], x[5]
    row = tl.minimum(top + tl.arange(0, ROWS), rows - 1)
    totals = ()
    for _ in tl.static_range(COLUMNS):
        totals = totals + (tl.zeros([ROWS, 128], tl.float32),)
    if PIECES == STEP:
        pieces = fetch_plain(base, blocks * 32, row, first, STEP, TYPE, EVEN)
        wait(OVERLAP)
        totals = meet_plain(totals, pieces, numbers, x_blocks * 32, valid * 32, row, token, tokens, first, EVEN, FORM)
    else:
        for p in range(0, PIECES, STEP):
            at = first + p * 128
            pieces = fetch_plain(base, blocks * 32, row, at, STEP, TYPE, EVEN)
            wait(OVERLAP)
            totals = meet_plain(totals, pieces, numbers, x_blocks * 32, valid * 32, row, token, tokens, at, EVEN, FORM)
    sums = ()
    for c in tl.static_range(COLUMNS):
        sums = sums + (tl.sum(totals[c], axis=1),)
    return sums
