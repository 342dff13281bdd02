"""Rows of a matrix in planes times a few columns, by one program: weights on their way, products, where sums go."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .kinds import number_bytes
from .plain import plain_rows
from .products import fetch_units, lane_rows, meet_groups, nothing, tree
from .target import wait


@triton.jit
def fetch_groups(
    base, rows, blocks, number, first,
    COUNT: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """COUNT units of GROUPS groups of ROWS rows from `number` on."""
    raws = ()
    for g in tl.static_range(GROUPS):
        row = tl.minimum(number + g * ROWS + lane_rows(ROWS), rows - 1)
        raws = raws + (fetch_units(base, rows, blocks, row, first, COUNT, TYPE, EVEN),)
    return raws


@triton.jit
def tile_sums(
    base, rows, blocks, top, x, token, tokens, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums of GROUPS·ROWS rows from `top` on over UNITS units from `first` on, STEP of them at a time.

    Waits for earlier kernels once its first weights are on their way.
    """
    sums = nothing(COLUMNS * GROUPS, ROWS, TYPE)
    if UNITS == STEP:
        raws = fetch_groups(base, rows, blocks, top, first, STEP, ROWS, GROUPS, TYPE, EVEN)
        wait(OVERLAP)
        sums = meet_groups(sums, raws, x, token, tokens - 1, first, STEP, COLUMNS, GROUPS, TYPE, FINE, EVEN, FORM)
    else:
        for u in range(first, first + UNITS, STEP):
            raws = fetch_groups(base, rows, blocks, top, u, STEP, ROWS, GROUPS, TYPE, EVEN)
            wait(OVERLAP)  # here, as a second copy of the body takes long to compile; later ones pass at once
            sums = meet_groups(sums, raws, x, token, tokens - 1, u, STEP, COLUMNS, GROUPS, TYPE, FINE, EVEN, FORM)
    return sums


@triton.jit
def row_tile(
    base, row_scale, rows, blocks, tile, x, token, tokens, out, out_stride, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """GROUPS·ROWS rows of one matrix times COLUMNS columns, as `tile_sums` or `plain_rows` read them, into out."""
    top = tile * ROWS * GROUPS
    if number_bytes(TYPE) > 0:
        sums = plain_rows(
            base, rows, blocks, top, x, token, tokens, first * 256, 2 * UNITS, 2 * STEP, ROWS, COLUMNS, TYPE, EVEN,
            FORM, OVERLAP,
        )  # fmt: skip
    else:
        sums = tile_sums(
            base, rows, blocks, top, x, token, tokens, first, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN,
            FORM, OVERLAP,
        )  # fmt: skip
    for c in tl.static_range(COLUMNS):
        for g in tl.static_range(GROUPS):
            y = sums[c * GROUPS + g]
            if number_bytes(TYPE) == 0:
                y = tree(y, ROWS)
            mine = top + g * ROWS + tl.arange(0, ROWS)
            if SCALED:
                y *= tl.load(row_scale + tl.minimum(mine, rows - 1))
            there = (mine < rows) & (token + c < tokens)
            tl.store(out + (token + c).to(tl.int64) * out_stride + mine, y, mask=there)
