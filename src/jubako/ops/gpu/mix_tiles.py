"""The two thin products around a mix, of matrices in tiles: of a block into the streams, and of the streams.

As combine.py and hyper.py have them for other layouts; sixteen rows of a product are one operand here (tensor.py).
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import store_each
from .integer import fma
from .products import thirty_two
from .target import release, wait
from .tensor import fetch_tiles, lane_parts, meet_tiles, no_tiles, tile_tree


@triton.jit
def product_tiles_kernel(
    base, scale, units, x_q, x_d, x_blocks, streams, inject, gamma,
    q, d, s, numbers, squares, wide, hidden, tokens,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, SCALED: tl.constexpr, STREAMS: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program `tile`: 32 rows of a product for all tokens, added to all their streams, and those made `Wide`."""
    release(OVERLAP)
    tile = tl.program_id(0)
    part = lane_parts(2)
    sums = no_tiles(2, FOURS)
    for u in range(0, UNITS, STEP):
        raws = fetch_tiles(base, hidden, units, tile * 32 + 16 * part, u, STEP, 2)
        wait(OVERLAP)
        sums = meet_tiles(sums, raws, (x_q, x_d, x_blocks), tokens, u, STEP, 2, FOURS, FORM)
    n = tl.arange(0, 4 * STREAMS)
    h = tile * 32 + tl.arange(0, 32)
    for c in tl.static_range(FOURS):
        y = tl.reshape(tl.permute(tile_tree(sums[c], 2), [0, 2, 3, 1]), [4, 1, 32])
        if SCALED:
            y *= tl.load(scale + h)[None, None, :]
        y = tl.reshape(tl.broadcast_to(y, [4, STREAMS, 32]), [4 * STREAMS, 32])
        token = 4 * c + n // STREAMS
        row = 4 * c * STREAMS + n
        live = token < tokens
        at = streams + row[:, None] * hidden + h[None, :]
        weight = tl.load(inject + row, mask=live, other=0.0)
        old = tl.load(at, mask=live[:, None], other=0.0)
        value = fma(weight[:, None] + y * 0.0, y, old, FORM)
        tl.store(at, value, mask=live[:, None])
        scaled = value * tl.load(gamma + (n % STREAMS)[:, None] * hidden + h[None, :])
        block = n % STREAMS * (hidden // 32) + tile
        store_each(scaled, token, block, live, wide, q, d, s, numbers, True, True)
        tl.store(squares + row * tl.num_programs(0) + tile, thirty_two(value * value), mask=live)


@triton.jit
def long_tiles(
    base, scale, rows, top, x, squares, inverse, tokens, hidden, eps,
    PARTS: tl.constexpr, PLACES: tl.constexpr, UNITS: tl.constexpr, STEP: tl.constexpr, STREAMS: tl.constexpr,
    FOURS: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sixteen rows from `top` on times the normed streams / STREAMS: a float32 [column 4, g 8, row or below] a four.

    The streams are read side by side. Program 0 writes their factors to inverse [T, S].
    """
    first = lane_parts(STREAMS) * UNITS
    sums = no_tiles(STREAMS, FOURS)
    for u in range(0, UNITS, STEP):
        raws = fetch_tiles(base, rows, STREAMS * UNITS, top, first + u, STEP, STREAMS)
        wait(OVERLAP)
        sums = meet_tiles(sums, raws, x, tokens, first + u, STEP, STREAMS, FOURS, FORM)
    HALF: tl.constexpr = STREAMS // 2
    n = tl.arange(0, 4 * STREAMS)
    part = tl.arange(0, PLACES)[None, :]
    row = tl.minimum(top + tl.arange(0, 2)[None, :] * 8 + tl.arange(0, 8)[:, None], rows - 1)
    totals = ()
    for c in tl.static_range(FOURS):
        line = tl.minimum(4 * c * STREAMS + n, tokens * STREAMS - 1)[:, None]
        each = tl.load(squares + line * PARTS + part, mask=part < PARTS, other=0.0)
        factor = tl.rsqrt(tl.sum(each, axis=1) / hidden + eps)
        if top == 0:
            tl.store(inverse + 4 * c * STREAMS + n, factor, mask=4 * c * STREAMS + n < tokens * STREAMS)
        y = tile_tree(sums[c], STREAMS) * tl.reshape(factor, [4, 1, STREAMS, 1])
        y = tl.sum(tl.reshape(tl.sum(tl.reshape(y, [4, 8, 2, HALF, 2]), axis=2), [4, 8, HALF, 2]), axis=2)
        y *= 1.0 / STREAMS
        if SCALED:
            y *= tl.load(scale + row)[None, :, :]
        totals = totals + (y,)
    return totals
