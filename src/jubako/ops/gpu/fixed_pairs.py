"""What products of codes in tiles with columns of floats (fixed.py) are made of: pairs of blocks of sixteen rows.

A block's products are exact integers; with sub-scales for sixteen weights it is two instructions of sixteen. Minima
come with the columns' sums of codes, which those who make the codes leave beside them.

Four sums of a row take turns, so that a single column's lanes can have one each (fixed_lanes.py).
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half, upper_half
from .fixed import block_dot
from .integer import fma, look_up
from .kinds import (
    bias_of,
    blocks_per_d,
    d_bytes,
    has_table,
    has_width,
    minimum_of,
    scales_of,
    sub_bytes,
    table_word,
)
from .tensor import words_of
from .tile_quants import shifted
from .tile_steps import plain_half_dot


@triton.jit
def planes_of(base, rows, pairs, TYPE: tl.constexpr):
    """Where codes, further bits, sub-scales and scales begin, as words; those that a type has not, anywhere."""
    unit = tl.cdiv(rows, 16) * pairs  # pairs of sixteen rows in all
    words = base.to(tl.pointer_type(tl.int32))
    at = unit * (256 if has_width(TYPE, 8) else 128)
    more = words + at
    if has_width(TYPE, 2):
        at += unit * 64
    elif has_width(TYPE, 1):
        at += unit * 32
    sub = words + at
    at += unit * (8 * sub_bytes(TYPE))
    return words, more, sub, words + at


@triton.jit
def fetch_codes(base, rows, pairs, top, first, t, g, COUNT: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Codes of COUNT pairs, from pair `first` on, of the sixteen rows from `top` on: of each block two words of a row,
    two of the row eight below."""
    words, more, _, _ = planes_of(base, rows, pairs, TYPE)
    four, two = tl.arange(0, 4), tl.arange(0, 2)
    raws = ()
    if has_width(TYPE, 8):
        at = words + (((top // 8 * pairs + first) * 8 + g) * 16 + t * 4)[:, :, :, None] + four
        for i in tl.static_range(COUNT):
            raws = raws + ((tl.load(at + i * 128), tl.load(at + (pairs * 128 + i * 128))),)
    else:
        at = (top // 16 * pairs + first) * 8 + g
        nibbles = words + ((at * 16 + t * 4)[:, :, :, None] + four)
        for i in tl.static_range(COUNT):
            nibble = tl.load(nibbles + i * 128)
            rest = nibble
            if has_width(TYPE, 2):
                rest = tl.load(more + ((at * 8 + t * 2)[:, :, :, None] + two) + i * 64)
            elif has_width(TYPE, 1):
                rest = tl.load(more + (at * 4 + t) + i * 32)
            raws = raws + ((nibble, rest),)
    blocks = ()
    for i in tl.static_range(COUNT):
        blocks = blocks + codes_of_pair(raws[i], TYPE, FORM)
    return blocks


@triton.jit
def codes_of_pair(raw, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Both blocks of a pair: (two words of a row, two of the row below) each."""
    if has_width(TYPE, 8):
        row, below = words_of(raw[0]), words_of(raw[1])
        return ((row[0], row[1]), (below[0], below[1])), ((row[2], row[3]), (below[2], below[3]))
    else:
        four = words_of(raw[0])
        more, more_below = raw[1], raw[1]
        if has_width(TYPE, 2):
            more, more_below = tl.split(raw[1])
        return (
            (codes_of(four[0], more, 0, 0, TYPE, FORM), codes_of(four[2], more_below, 1, 0, TYPE, FORM)),
            (codes_of(four[1], more, 0, 1, TYPE, FORM), codes_of(four[3], more_below, 1, 1, TYPE, FORM)),
        )


@triton.jit
def fetch_factors(base, rows, pairs, top, block, t, g, TYPE: tl.constexpr):
    """`factors_of` `block` [t, g, w], of a row and of the row eight below. t: of no order that the compiler sees, as it
    would load what lies side by side in another one."""
    _, _, sub, d = planes_of(base, rows, pairs, TYPE)
    g = g + t * 0
    pair, h = block // 2, block % 2
    if has_width(TYPE, 8):
        scales = d.to(tl.pointer_type(tl.int16)) + (((top // 8 * pairs + pair) * 8 + g) * 2 + h)
        near, far = tl.load(scales).to(tl.int32), tl.load(scales + pairs * 16).to(tl.int32)
        return factors_of(near, near, TYPE), factors_of(far, far, TYPE)
    else:
        at = (top // 16 * pairs + pair) * 8 + g
        if blocks_per_d(TYPE) == 8:
            unit = (top // 16 * (pairs // 4) + block // 8) * 8 + g
            if d_bytes(TYPE) == 2:
                word = tl.load(d + unit)
                near, far = word, word >> 16
            else:
                near, far = tl.load(d + unit * 2), tl.load(d + (unit * 2 + 1))
        elif d_bytes(TYPE) == 2:
            scales = d.to(tl.pointer_type(tl.int16)) + (at * 4 + h)
            near, far = tl.load(scales).to(tl.int32), tl.load(scales + 2).to(tl.int32)
        else:
            near, far = tl.load(d + (at * 4 + h)), tl.load(d + (at * 4 + 2 + h))
        below, far_sub = near, near
        if sub_bytes(TYPE) > 0:
            subs = sub.to(tl.pointer_type(tl.int16 if sub_bytes(TYPE) == 2 else tl.int8)) + (at * 4 + h)
            below, far_sub = tl.load(subs).to(tl.int32), tl.load(subs + 2).to(tl.int32)
        return factors_of(near, below, TYPE), factors_of(far, far_sub, TYPE)


@triton.jit
def fetch_pair_factors(base, rows, pairs, top, pair, t, g, TYPE: tl.constexpr):
    """`fetch_factors` of both blocks of a pair."""
    _, _, sub, d = planes_of(base, rows, pairs, TYPE)
    g = g + t * 0
    two = tl.arange(0, 2)
    if has_width(TYPE, 8):
        at = d + ((top // 8 * pairs + pair) * 8 + g)
        near, far = tl.load(at), tl.load(at + pairs * 8)
        second, far_second, low, low_far = near >> 16, far >> 16, near, far
    else:
        at = (top // 16 * pairs + pair) * 8 + g
        if blocks_per_d(TYPE) == 8:
            unit = (top // 16 * (pairs // 4) + pair // 4) * 8 + g
            if d_bytes(TYPE) == 2:
                near = tl.load(d + unit)
                far = near >> 16
            else:
                near, far = tl.split(tl.load(d + ((unit * 2)[:, :, :, None] + two)))
            second, far_second = near, far
        elif d_bytes(TYPE) == 2:
            near, far = tl.split(tl.load(d + ((at * 2)[:, :, :, None] + two)))
            second, far_second = near >> 16, far >> 16
        else:
            near, second, far, far_second = words_of(tl.load(d + ((at * 4)[:, :, :, None] + tl.arange(0, 4))))
        low, low_far = near, near
        if sub_bytes(TYPE) == 2:
            low, low_far = tl.split(tl.load(sub + ((at * 2)[:, :, :, None] + two)))
        elif sub_bytes(TYPE) == 1:
            low = tl.load(sub + at)
            low_far = low >> 16
    NEXT: tl.constexpr = 8 * sub_bytes(TYPE)
    return (
        (factors_of(near, low, TYPE), factors_of(far, low_far, TYPE)),
        (factors_of(second, low >> NEXT, TYPE), factors_of(far_second, low_far >> NEXT, TYPE)),
    )


@triton.jit
def factors_of(d, sub, TYPE: tl.constexpr):
    """Of a block a scale, and what its sum of codes is multiplied by or both halves' scales: of a word d and sixteen
    bits of sub-scales."""
    if scales_of(TYPE) == 1:
        return half(d), byte_at(sub, 0, True), byte_at(sub, 1, True)
    elif sub_bytes(TYPE) == 1:
        return (half(d) * byte_at(sub, 0, True),)
    elif sub_bytes(TYPE) > 0:
        return half(d) * byte_at(sub, 0, False), upper_half(d) * (0.0 - byte_at(sub, 1, False))
    elif d_bytes(TYPE) == 4:
        return half(d), upper_half(d)
    else:
        return (half(d),)


@triton.jit
def byte_at(x, AT: tl.constexpr, SIGNED: tl.constexpr):
    """A byte of a word as float32."""
    return ((x << (24 - 8 * AT)) >> 24 if SIGNED else (x >> (8 * AT)) & 255).to(tl.float32)


@triton.jit
def codes_of(nibbles, more, BELOW: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Both words of a row's block: its low nibbles' and its high nibbles', a byte a code."""
    if has_table(TYPE):
        return look_up(
            nibbles, table_word(TYPE, 0), table_word(TYPE, 1), table_word(TYPE, 2), table_word(TYPE, 3), FORM
        )
    else:
        low, high = nibbles & 0x0F0F0F0F, (nibbles >> 4) & 0x0F0F0F0F
        if has_width(TYPE, 2):
            low |= shifted(more, 4 - 4 * BLOCK) & 0x30303030
            high |= shifted(more, 2 - 4 * BLOCK) & 0x30303030
        elif has_width(TYPE, 1):
            low |= shifted(more, 4 - (4 * BELOW + 2 * BLOCK)) & 0x10101010
            high |= shifted(more, 3 - (4 * BELOW + 2 * BLOCK)) & 0x10101010
        if minimum_of(TYPE) > 0:
            return low, high
        else:
            return signed(low, TYPE), signed(high, TYPE)


@triton.jit
def signed(x, TYPE: tl.constexpr):
    """Codes of four bytes less their bias, as signed bytes."""
    BIAS: tl.constexpr = bias_of(TYPE)
    x = x ^ (BIAS * 0x01010101)
    return x + (x & (BIAS * 0x01010101)) * ((256 - 2 * BIAS) // BIAS)


@triton.constexpr_function
def halves_asm() -> str:
    """Sums of both sixteens of a block: of the first for a row and the one below, of the second."""
    product = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, c<4>, d<4>; mov.b32 z, 0;"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $6}}, {{$8}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{$5, $7}}, {{$9}}, {{z, z, z, z}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;"
        "mad.lo.s32 $2, d1, 256, d0; mad.lo.s32 $3, d3, 256, d2;}"
    )


@triton.jit
def half_dots(row, below, x, FORM: tl.constexpr):
    """Σ code·q of both sixteens of a block: (rows, those eight below) of the first, then of the second."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            halves_asm(), "=r,=r,=r,=r,r,r,r,r,r,r", [row[0], row[1], below[0], below[1], x[0], x[1]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return (
            plain_half_dot(row[0], x[0], FORM),
            plain_half_dot(below[0], x[0], FORM),
            plain_half_dot(row[1], x[1], FORM),
            plain_half_dot(below[1], x[1], FORM),
        )


@triton.jit
def add_dots(sum_, dot, second, factor, column, codes, TYPE: tl.constexpr, FORM: tl.constexpr):
    """A row's sum after a block. dot: Σ code·q, or of its first half, then second has the other's; codes: Σ q times the
    column's scale, where a type has minima."""
    if scales_of(TYPE) == 1:
        both = fma(second.to(tl.float32), factor[2], dot.to(tl.float32) * factor[1], FORM)
        return fma(both, factor[0] * column, sum_, FORM)
    else:
        sum_ = fma(dot.to(tl.float32), factor[0] * column, sum_, FORM)
        return fma(codes, factor[1], sum_, FORM) if minimum_of(TYPE) > 0 else sum_


@triton.jit
def add_pair_block(sums, codes, factors, x, column, q, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The sums of rows and of those below after a block of `fetch_codes` and of `fetch_factors`.

    x: two words, 8t … 8t + 7 or, where scales are of sixteen, 4t … 4t + 3 of both sixteens; column: the columns'
    scales; q: their sums of codes, times that.
    """
    if scales_of(TYPE) == 1:
        dots = half_dots(codes[0], codes[1], x, FORM)
    else:
        both = block_dot(codes[0], codes[1], x, FORM)
        dots = both + both
    return (
        add_dots(sums[0], dots[0], dots[2], factors[0], column, q, TYPE, FORM),
        add_dots(sums[1], dots[1], dots[3], factors[1], column, q, TYPE, FORM),
    )


@triton.jit
def no_sums(t, g, w):
    """Four sums of a row and of the row below, before the first block."""
    zero = (t + g + w) * 0.0
    return ((zero, zero), (zero, zero), (zero, zero), (zero, zero))


@triton.jit
def after_block(sums, at: tl.constexpr, now):
    """`sums` with another one in place `at` of four."""
    after = ()
    for i in tl.static_range(4):
        after = after + (now,) if i == at else after + (sums[i],)
    return after


@triton.jit
def whole(sums):
    """What all four make, for rows and for those below."""
    return (
        (sums[0][0] + sums[1][0]) + (sums[2][0] + sums[3][0]),
        (sums[0][1] + sums[1][1]) + (sums[2][1] + sums[3][1]),
    )
