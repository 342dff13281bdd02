"""Blocks of 32 out of tiles (tiles.py), one a lane, as `blocks.fetch_blocks` has them out of planes."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .kinds import blocks_per_d, bytes_before, d_bytes, has_table, has_width, scales_of, sub_bytes


@triton.jit
def number(base, at, BYTES: tl.constexpr):
    """Unsigned number `at` of an array of them, as int32."""
    if BYTES == 1:
        return tl.load(base.to(tl.pointer_type(tl.uint8)) + at).to(tl.int32)
    elif BYTES == 2:
        return tl.load(base.to(tl.pointer_type(tl.uint16)) + at).to(tl.int32)
    else:
        tl.static_assert(BYTES == 4)
        return tl.load(base.to(tl.pointer_type(tl.int32)) + at)


@triton.jit
def fetch_tiled(base, rows, blocks, row, block, TYPE: tl.constexpr):
    """(first, second, twos, bits, sub, d) of block `block` of `row`, which broadcast to lanes [.., .., 1]."""
    size = tl.cdiv(rows, 16) * 16 * blocks
    i = tl.arange(0, 4)[None, None, :]
    if has_width(TYPE, 8):
        nothing = tl.zeros_like(row + block)
        pair = (row // 8 * (blocks // 2) + block // 2) * 8 + row % 8
        codes = base.to(tl.pointer_type(tl.int32)) + (pair * 16 + block % 2 * 2 + i // 2 * 4 + i % 2)
        d = number(base + size * 32, pair * 2 + block % 2, 2)
        return tl.load(codes), tl.load(codes + 8), nothing, nothing, nothing, nothing, d
    else:
        return fetch_quant(base, size, blocks, row, block, i, TYPE)


@triton.jit
def fetch_quant(base, size, blocks, row, block, i, TYPE: tl.constexpr):
    """`fetch_tiled` of packed codes of `size` blocks; i: 0 … 3 in the last dimension."""
    b, below = block % 2, row // 8 % 2
    pair = (row // 16 * (blocks // 2) + block // 2) * 8 + row % 8
    own = pair * 16 + below * 2 + b
    nibbles = base.to(tl.pointer_type(tl.int32))
    # thread t has weights 4t … and 16 + 4t … of a halved block, else 8t … 8t + 7
    if scales_of(TYPE) == 1:
        first = tl.load(nibbles + (own + i * 4))
    else:
        near, far = tl.load(nibbles + (own + i // 2 * 4)), tl.load(nibbles + (own + i // 2 * 4 + 8))
        if has_table(TYPE):
            first = ((near >> (i % 2 * 16)) & 0xFFFF) | (far >> (i % 2 * 16)) << 16
        else:
            first = ((near >> (i % 2 * 4)) & 0x0F0F0F0F) | ((far >> (i % 2 * 4)) & 0x0F0F0F0F) << 4
    nothing = tl.zeros_like(own)
    low, high, bit = nothing, nothing, nothing
    if has_width(TYPE, 2):
        twos = (base + size * bytes_before(TYPE, 2)).to(tl.pointer_type(tl.int32))
        word = tl.load(twos + (pair * 8 + i * 2 + below)) >> (4 * b)
        low, high = (word & 0x03030303) << (2 * i), ((word >> 2) & 0x03030303) << (2 * i)
    if has_width(TYPE, 1):
        bits = (base + size * bytes_before(TYPE, 1)).to(tl.pointer_type(tl.int32)) + (pair * 4 + i // 2)
        place = 4 * below + 2 * b + i % 2
        bit = ((tl.load(bits) >> place) & 0x01010101) << i | ((tl.load(bits + 2) >> place) & 0x01010101) << (i + 4)
    scales = base + size * bytes_before(TYPE, 0)
    sub, at = nothing, pair * 4 + below * 2 + b
    if sub_bytes(TYPE) > 0:
        sub = number(scales, at, sub_bytes(TYPE))
        if sub_bytes(TYPE) == 1:
            sub = (sub << 24) >> 24
    if blocks_per_d(TYPE) == 8:
        at = (row // 16 * (blocks // 8) + block // 8) * 16 + row % 8 * 2 + below
    return first, nothing, low, high, bit, sub, number(scales + size * sub_bytes(TYPE), at, d_bytes(TYPE))
