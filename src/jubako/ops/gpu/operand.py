"""Weights as the left factor of `tl.dot`, decoded in the registers that the tensor cores read them from.

Of every sixteen numbers of a row a thread holds two neighbours and the two eight places on. So the 128 numbers of a
unit of four blocks come in the order (word i, half, b1, block j, b0) instead of (j, half, i, b1, b0), where 2·b1 + b0
is a byte of word i: thread j of a row then owns block j, and no number moves between threads. Inputs are put in the
same order (`place_of`). Small indices are loaded, not made: of loads the compiler may choose the layout.

Numbers are float16, SCALE times as large as the weights, so that small scales keep their bits; weights reach to 1,023.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from .blocks import factors, unpack_words
from .halves import excess, four_halves, plain_bytes, twice
from .kinds import (
    bias_of,
    blocks_per_d,
    bytes_before,
    d_bytes,
    has_width,
    is_,
    minimum_of,
    number_bytes,
    scales_of,
    sub_bytes,
)

UNIT = 128  # numbers of a row that are decoded together: four blocks
SCALE = 64.0
MOST_ROWS = 1 << 16  # of a matrix


@lru_cache(maxsize=16)
def counting(device: torch.device) -> torch.Tensor:
    """0, 1, 2, …: what kernels load small indices and rows' numbers from."""
    return torch.arange(MOST_ROWS, dtype=torch.int32, device=device)


@triton.jit
def place_of(k):
    """Where number k of a row stands in the order of `operand`."""
    j, half, i, pair, b = (k >> 5) & 3, (k >> 4) & 1, (k >> 2) & 3, (k >> 1) & 1, k & 1
    return (k & -128) | (i << 5) | (half << 4) | (pair << 3) | (j << 1) | b


@triton.jit
def number_at(place):
    """The inverse of `place_of`."""
    i, half, pair, j, b = (place >> 5) & 3, (place >> 4) & 1, (place >> 3) & 1, (place >> 1) & 3, place & 1
    return (place & -128) | (j << 5) | (half << 4) | (i << 2) | (pair << 1) | b


@triton.jit
def _of_blocks(base, blocks, row, unit, j, each: tl.constexpr, EVEN: tl.constexpr):
    """`each` bytes a block [4, rows, 1] of a plane [*, blocks, each]; a row's four are one word where they can."""
    if not EVEN:
        at = row * blocks + tl.minimum(unit * 4 + j, blocks - 1)
        if each == 1:
            return tl.load(base.to(tl.pointer_type(tl.uint8)) + at).to(tl.int32)
        elif each == 2:
            return tl.load(base.to(tl.pointer_type(tl.uint16)) + at).to(tl.int32)
        else:
            return tl.load(base.to(tl.pointer_type(tl.int32)) + at)
    else:
        at = row * (blocks // 4) + unit
        if each == 1:
            return (tl.load(base.to(tl.pointer_type(tl.int32)) + at) >> (8 * j)) & 255
        elif each == 2:
            return (tl.load(base.to(tl.pointer_type(tl.int64)) + at) >> (16 * j)).to(tl.int32) & 0xFFFF
        else:
            pointer = base.to(tl.pointer_type(tl.int64)) + at * 2
            both = tl.where(j < 2, tl.load(pointer), tl.load(pointer + 1))
            return (both >> (32 * (j & 1))).to(tl.int32)


@triton.jit
def _of_several(
    base, blocks: tl.constexpr, row, unit, j, counting, each: tl.constexpr, every: tl.constexpr,
):  # fmt: skip
    """Scales of `each` bytes that `every` blocks share, [1 or 4, rows, 1]. Halves come as words with a neighbour: less
    than four bytes cannot be fetched ahead. The index is loaded as half a word for that very reason: were it fetched
    ahead too, what depends on it could be half as far ahead, and all other loads with it.
    """
    of_row: tl.constexpr = (blocks + every - 1) // every
    index = counting.to(tl.pointer_type(tl.uint16)) + 2 * (unit * 4 // every + tl.arange(0, 1)[:, None, None])
    at = row * of_row + tl.load(index).to(tl.int32)
    if every == 2:
        at = tl.minimum(at + j // 2, row * of_row + of_row - 1)
    if each == 4:
        return tl.load(base.to(tl.pointer_type(tl.int32)) + at)
    else:
        return tl.load(base.to(tl.pointer_type(tl.int32)) + at // 2) >> (16 * (at % 2))


@triton.jit
def _words(base, place):
    """Sixteen bytes at 16·place [4, rows, 1]: words 0 and 2, words 1 and 3, [4, rows, 2] each."""
    both = tl.load(base.to(tl.pointer_type(tl.int64)) + (place * 2 + tl.arange(0, 2)[None, None, :]))
    return both.to(tl.int32), (both >> 32).to(tl.int32)


@triton.jit
def fetch_four(base, rows, blocks: tl.constexpr, row, unit, j, counting, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """Blocks 4·unit + j of rows `row` [1, rows, 1] as they lie: see `blocks.fetch`; twice, of words 0 and 2, and of
    words 1 and 3. EVEN: no unit is partial; j [4, 1, 1], row: loaded indices.
    """
    lane = row * blocks + (unit * 4 + j if EVEN else tl.minimum(unit * 4 + j, blocks - 1))
    size = rows * blocks
    zero = tl.zeros_like(lane)
    first, second, low, high, bit, sub, d = zero, zero, zero, zero, zero, zero, zero
    odd_first, odd_second = zero, zero
    if has_width(TYPE, 8) or has_width(TYPE, 4):
        first, odd_first = _words(base, lane)
    if has_width(TYPE, 8):
        second, odd_second = _words(base, size + lane)
    if has_width(TYPE, 2):
        both = tl.load((base + size * bytes_before(TYPE, 2)).to(tl.pointer_type(tl.int64)) + lane)
        low, high = both.to(tl.int32), (both >> 32).to(tl.int32)
    if has_width(TYPE, 1):
        bit = tl.load((base + size * bytes_before(TYPE, 1)).to(tl.pointer_type(tl.int32)) + lane)
    scales = base + size * bytes_before(TYPE, 0)
    if sub_bytes(TYPE) > 0:
        sub = _of_blocks(scales, blocks, row, unit, j, sub_bytes(TYPE), EVEN)
        if sub_bytes(TYPE) == 1:
            sub = (sub << 24) >> 24
    if d_bytes(TYPE) > 0:
        scales += size * sub_bytes(TYPE)
        if blocks_per_d(TYPE) == 1:
            d = _of_blocks(scales, blocks, row, unit, j, d_bytes(TYPE), EVEN)
        else:
            d = _of_several(scales, blocks, row, unit, j, counting, d_bytes(TYPE), blocks_per_d(TYPE))
    return (first, second, low, high, bit, sub, d), (odd_first, odd_second, low, high, bit, sub, d)


@triton.jit
def _ordered(numbers, ROWS: tl.constexpr):
    """Numbers of words 2w + o of both halves of blocks j to [rows, 128] in the order of the top.

    numbers[o][half][b] [j, rows, w]: byte b = 2·b1 + b0 of a word.
    """
    by_b0 = ()
    for b0 in tl.static_range(2):
        by_b1 = ()
        for b1 in tl.static_range(2):
            even = tl.join(numbers[0][0][2 * b1 + b0], numbers[0][1][2 * b1 + b0])
            odd = tl.join(numbers[1][0][2 * b1 + b0], numbers[1][1][2 * b1 + b0])
            by_b1 = by_b1 + (tl.join(even, odd),)  # half, o
        by_b0 = by_b0 + (tl.join(by_b1[0], by_b1[1]),)
    every = tl.permute(tl.join(by_b0[0], by_b0[1]), (1, 2, 4, 3, 5, 0, 6))  # rows, w, o, half, b1, j, b0
    return tl.reshape(every, [ROWS, 128])


@triton.jit
def _plain_unit(base, blocks, row, unit, j, ROWS: tl.constexpr, TYPE: tl.constexpr, SCALE: tl.constexpr):
    """128 plain numbers of each row."""
    at = (row * blocks + tl.minimum(unit * 4 + j, blocks - 1)) * 32 + 8 * tl.arange(0, 2)[None, None, :]
    numbers = ()
    for o in tl.static_range(2):
        halves = ()
        for half in tl.static_range(2):
            values = ()
            for b in tl.static_range(4):
                place = at + (4 * o + half * 16 + b)
                if is_(TYPE, "F32"):
                    value = tl.load(base.to(tl.pointer_type(tl.float32)) + place)
                elif is_(TYPE, "F16"):
                    value = tl.load(base.to(tl.pointer_type(tl.float16)) + place).to(tl.float32)
                else:
                    value = tl.load(base.to(tl.pointer_type(tl.bfloat16)) + place).to(tl.float32)
                values = values + ((value * SCALE).to(tl.float16),)
            halves = halves + (values,)
        numbers = numbers + (halves,)
    return _ordered(numbers, ROWS)


@triton.jit
def operand(
    base, rows, blocks: tl.constexpr, row, unit, j, pair, counting,
    ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Numbers 128·unit on of rows `row` [1, rows, 1] of a matrix: float16 [rows, 128], SCALE times the weights.

    j [4, 1, 1] and pair [1, 1, 2]: loaded from `counting`. What lies beyond a row's blocks is arbitrary but finite.
    """
    if number_bytes(TYPE) > 0:
        return _plain_unit(base, blocks, row, unit, j, ROWS, TYPE, SCALE)
    else:
        raws = fetch_four(base, rows, blocks, row, unit, j, counting, TYPE, EVEN)
        factor, s0, s1, offset, m0, m1 = factors(raws[0], TYPE)
        f0, f1 = factor, factor
        if scales_of(TYPE) == 1:
            f0, f1 = factor * s0, factor * s1
        elif scales_of(TYPE) == 2:
            f1 = s1
        low0, low1 = offset, offset
        if minimum_of(TYPE) == 2:
            low0, low1 = offset * m0, offset * m1
        f0, f1 = twice(f0 * SCALE, FORM), twice(f1 * SCALE, FORM)
        low0, low1 = twice(low0 * SCALE, FORM), twice(low1 * SCALE, FORM)
        MINIMUM: tl.constexpr = minimum_of(TYPE) > 0
        BYTES: tl.constexpr = FORM == 1 or FORM == 4
        OVER: tl.constexpr = excess(TYPE) if BYTES else bias_of(TYPE)
        numbers = ()
        for o in tl.static_range(2):
            if BYTES:
                w0, w1 = plain_bytes(raws[o], 2 * pair + o, j, TYPE, FORM)
            else:
                w0, w1 = unpack_words(raws[o], 2 * pair + o, TYPE, FORM)
            first = four_halves(w0, f0, low0, OVER, MINIMUM, FORM)
            numbers = numbers + ((first, four_halves(w1, f1, low1, OVER, MINIMUM, FORM)),)
        return _ordered(numbers, ROWS)
