"""Codes of a part of the streams, which the warps of a long product (hyper_long.py) leave for one another, and sums.

Blocks of 32 are bytes [i, warp, column, low or high, 32], behind SCALES words a scale [i, warp, column], then, where
wanted, a sum of codes: warp w makes blocks BLOCKS·w to BLOCKS·(w + 1) − 1 of the part, i counts its own.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .fixed import pack, parts_of_codes, quick_inverse, sum_of_bytes
from .integer import fma
from .room import found, found_two, leave, leave_bytes
from .tensor import words_of


@triton.jit
def leave_block(
    x, room, i, SCALES: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr,
    HALVED: tl.constexpr, SUMMED: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Blocks x float32 [(warp, column), 32], the i-th of each warp. HALVED: words of four codes take turns, one of the
    first sixteen, one of the second. SUMMED: sums of codes times scales come behind the scales."""
    SUMS: tl.constexpr = SCALES + BLOCKS * WARPS * COLUMNS
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1).to(tl.float32, bitcast=True)[:, None]
    block = i * WARPS * COLUMNS + tl.arange(0, WARPS * COLUMNS)[:, None]
    k = tl.arange(0, 32)[None, :]
    scale = largest * (1.0 / 32385.0)
    leave(room, SCALES + block + k * 0, tl.broadcast_to(scale, x.shape), (k == 0) & (block >= 0), FORM)
    inverse = quick_inverse(tl.broadcast_to(largest, x.shape), FORM)
    if COLUMNS == 4 and FORM == 4:  # a lane has four neighbours
        four = words_of(tl.reshape(x, [1, WARPS * COLUMNS, 8, 4]))
        every = words_of(tl.reshape(inverse, [1, WARPS * COLUMNS, 8, 4]))[0]
        m = tl.arange(0, 8)[None, None, :]
        total = tl.zeros([1, WARPS * COLUMNS, 8], tl.int32)
        at = block[None, :, :] * 16 + (m % 4 * 2 + m // 4 if HALVED else m)
        for part in tl.static_range(2):
            magic, select = parts_of_codes(m * 0 + part)
            word = pack(four, every, magic, select, FORM)
            leave(room, at + part * 8, word, at >= 0, FORM)
            if SUMMED:
                total += sum_of_bytes(word, FORM) * (1 + 255 * part)
        if SUMMED:
            own = words_of(tl.reshape(tl.broadcast_to(scale, x.shape), [1, WARPS * COLUMNS, 8, 4]))[0]
            y = tl.broadcast_to(tl.sum(total, axis=2)[:, :, None], total.shape).to(tl.float32) * own
            leave(room, SUMS + block[None, :, :] + m * 0, y, (m == 0) & (block[None, :, :] >= 0), FORM)
    else:
        at = block * 64 + (k // 4 % 4 * 8 + k // 16 * 4 + k % 4 if HALVED else k)
        bits = fma(x, inverse, tl.full(x.shape, 12582912.0, tl.float32), FORM).to(tl.int32, bitcast=True)
        leave_bytes(room, at, bits, FORM)
        leave_bytes(room, at + 32, (bits + 128) >> 8, FORM)
        if SUMMED:
            y = tl.broadcast_to(tl.sum(bits - 0x4B400000, axis=1)[:, None], x.shape).to(tl.float32)
            leave(room, SUMS + block + k * 0, y * tl.broadcast_to(scale, x.shape), (k == 0) & (block >= 0), FORM)


@triton.jit
def found_block(room, block, t, g, SCALES: tl.constexpr, SUMS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Both words of thread t of a block that `leave_block` left, the columns' scales, and what lies SUMS words on."""
    x = found_two(room, (block + tl.minimum(g // 2, COLUMNS - 1)) * 16 + g % 2 * 8 + t * 2, FORM)
    at = SCALES + block + tl.minimum(t, COLUMNS - 1) + g * 0
    d = found(room, at, FORM)
    return x, d, found(room, at + SUMS, FORM) if SUMS > 0 else d


@triton.jit
def leave_sums(sums, room, at, t, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Sums of rows and of those eight below, to words `at`."""
    leave(room, at, sums[0], (t < COLUMNS) & (at >= 0), FORM)
    leave(room, at + 8, sums[1], (t < COLUMNS) & (at >= 0), FORM)
