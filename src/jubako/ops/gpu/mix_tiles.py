"""The product of a block into the streams, of a matrix in tiles: as combine.py has it for other layouts.

Sixteen rows of a product are one operand here (tensor.py).
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
