"""What products of packed codes in tiles with columns of floats are made of: `fixed.py` for pairs of blocks.

A block's products are exact integers; with sub-scales for sixteen weights it is two instructions of sixteen. Codes stay
as they are stored, without a sign: what they are too large by, and minima, come from sums of the columns' codes, which
the tensor cores make of a row of constants.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half, upper_half
from .integer import fma
from .kinds import bias_of, blocks_per_d, d_bytes, has_width, minimum_of, scales_of, sub_bytes
from .tensor import plain_dot, words_of
from .tile_quants import shifted
from .tile_steps import plain_half_dot


@triton.jit
def fetch_pieces(base, rows, pairs, top, first, t, g, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """Pairs `first` on of the sixteen rows from `top` on, on their way: (nibbles, further bits, sub-scales, scales)."""
    tile = top // 16
    at = (tile * pairs + first) * 8 + g
    unit = tl.cdiv(rows, 16) * pairs  # pairs of sixteen rows in all
    words = base.to(tl.pointer_type(tl.int32))
    four, two = tl.arange(0, 4), tl.arange(0, 2)
    nibbles = words + ((at * 16 + t * 4)[:, :, :, None] + four)
    codes = unit * 128  # words of the planes of codes
    more = nibbles
    if has_width(TYPE, 2):
        more = words + codes + ((at * 8 + t * 2)[:, :, :, None] + two)
        codes += unit * 64
    elif has_width(TYPE, 1):
        more = words + codes + (at * 4 + t)
        codes += unit * 32
    sub = words + codes + ((at * 2 + t * 0)[:, :, :, None] + two)
    if sub_bytes(TYPE) > 0:
        codes += unit * 16
    scales = words + codes
    raws = ()
    for i in tl.static_range(COUNT):
        nibble = tl.load(nibbles + i * 128)
        rest, subs = nibble, nibble
        if has_width(TYPE, 2):
            rest = tl.load(more + i * 64)
        elif has_width(TYPE, 1):
            rest = tl.load(more + i * 32)
        if sub_bytes(TYPE) > 0:
            subs = tl.load(sub + i * 16)
        raws = raws + ((nibble, rest, subs, fetch_scales(scales, tile, pairs, first + i, g + t * 0, TYPE)),)
    return raws


@triton.jit
def fetch_scales(base, tile, pairs, pair, g, TYPE: tl.constexpr):
    """Scales of a pair: of a unit of 256 [below] or of both blocks [below, block], as words."""
    two = tl.arange(0, 2)
    if blocks_per_d(TYPE) == 8:
        at = (tile * (pairs // 4) + pair // 4) * 8 + g
        return tl.load(base + at) if d_bytes(TYPE) == 2 else tl.load(base + ((at * 2)[:, :, :, None] + two))
    else:
        at = (tile * pairs + pair) * 8 + g
        if d_bytes(TYPE) == 2:
            return tl.load(base + ((at * 2)[:, :, :, None] + two))
        else:
            return tl.load(base + ((at * 4)[:, :, :, None] + tl.arange(0, 4)))


@triton.jit
def codes_of(nibbles, more, BELOW: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    """Both words of a row's block: its low nibbles' and its high nibbles', a byte a code."""
    low, high = nibbles & 0x0F0F0F0F, (nibbles >> 4) & 0x0F0F0F0F
    if has_width(TYPE, 2):
        low |= shifted(more, 4 - 4 * BLOCK) & 0x30303030
        high |= shifted(more, 2 - 4 * BLOCK) & 0x30303030
    elif has_width(TYPE, 1):
        low |= shifted(more, 4 - (4 * BELOW + 2 * BLOCK)) & 0x10101010
        high |= shifted(more, 3 - (4 * BELOW + 2 * BLOCK)) & 0x10101010
    return low, high


@triton.constexpr_function
def whole_asm() -> str:
    """Sums of a block of 32 for a row and the one eight below, and of the column's codes."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, o, c<4>, d<4>; mov.b32 z, 0; mov.b32 o, 0x01010101;"
        f"{product} {{c0, c1, c2, c3}}, {{$3, $5, $4, $6}}, {{$7, $8}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{o, o, o, o}}, {{$7, $8}}, {{z, z, z, z}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2; mad.lo.s32 $2, d1, 256, d0;}"
    )


@triton.constexpr_function
def halves_asm() -> str:
    """Sums of both sixteens of a block, of codes less 32: of the first for a row and the one below, of the second."""
    product = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, o, c<4>, d<4>; mov.b32 z, 0; mov.b32 o, 0xE0E0E0E0;"
        f"{product} {{c0, c1, c2, c3}}, {{o, o}}, {{$8}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{o, o}}, {{$9}}, {{z, z, z, z}};"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $6}}, {{$8}}, {{c0, c1, c2, c3}};"
        f"{product} {{d0, d1, d2, d3}}, {{$5, $7}}, {{$9}}, {{d0, d1, d2, d3}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;"
        "mad.lo.s32 $2, d1, 256, d0; mad.lo.s32 $3, d3, 256, d2;}"
    )


@triton.jit
def whole_dot(row, below, x, FORM: tl.constexpr):
    """Σ code·q of a block for rows and for those eight below, and Σ q: int32 [column 4, g, w] each."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            whole_asm(), "=r,=r,=r,r,r,r,r,r,r", [row[0], row[1], below[0], below[1], x[0], x[1]],
            dtype=(tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        one = row[0] * 0 + 0x01010101
        return (
            plain_dot(row[0], row[1], x[0], x[1], FORM),
            plain_dot(below[0], below[1], x[0], x[1], FORM),
            plain_dot(one, one, x[0], x[1], FORM),
        )


@triton.jit
def half_dots(row, below, x, FORM: tl.constexpr):
    """Σ (code − 32)·q of both sixteens of a block: (rows, those eight below) of the first, then of the second."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            halves_asm(), "=r,=r,=r,=r,r,r,r,r,r,r", [row[0], row[1], below[0], below[1], x[0], x[1]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        bias = row[0] * 0 + 0x20202020
        first, second = plain_half_dot(bias, x[0], FORM), plain_half_dot(bias, x[1], FORM)
        return (
            plain_half_dot(row[0], x[0], FORM) - first,
            plain_half_dot(below[0], x[0], FORM) - first,
            plain_half_dot(row[1], x[1], FORM) - second,
            plain_half_dot(below[1], x[1], FORM) - second,
        )


@triton.jit
def signed_byte(x, PLACE: tl.constexpr):
    return ((x << (24 - 8 * PLACE)) >> 24).to(tl.float32)


@triton.jit
def unsigned_byte(x, PLACE: tl.constexpr):
    return ((x >> (8 * PLACE)) & 255).to(tl.float32)


@triton.jit
def scales_at(raw, BELOW: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    """A block's scale, and what is added to its weights or else the scales of both sixteens that it multiplies."""
    if scales_of(TYPE) == 1:
        sub = tl.split(raw[2])[BELOW]
        return half(raw[3] >> (16 * BELOW)), signed_byte(sub, 2 * BLOCK), signed_byte(sub, 2 * BLOCK + 1)
    elif sub_bytes(TYPE) > 0:
        word = tl.split(raw[3])[BELOW]
        sub = tl.split(raw[2])[BELOW]
        return half(word) * unsigned_byte(sub, 2 * BLOCK), upper_half(word) * (0.0 - unsigned_byte(sub, 2 * BLOCK + 1))
    elif d_bytes(TYPE) == 4:
        word = words_of(raw[3])[2 * BELOW + BLOCK]
        return half(word), upper_half(word)
    else:
        return (half(tl.split(raw[3])[BELOW] >> (16 * BLOCK)),)


@triton.jit
def add_whole(sum_, dot, codes, scale, column, TYPE: tl.constexpr, FORM: tl.constexpr):
    """A row's sum after a block with one scale. codes: Σ q; column: the column's scale."""
    if minimum_of(TYPE) > 0:
        sum_ = fma(dot.to(tl.float32), scale[0] * column, sum_, FORM)
        return fma(codes.to(tl.float32) * column, scale[1], sum_, FORM)
    else:
        return fma((dot - codes * bias_of(TYPE)).to(tl.float32), scale[0] * column, sum_, FORM)


@triton.jit
def add_halves(sum_, first, second, scale, column, FORM: tl.constexpr):
    """A row's sum after a block with a scale for each sixteen."""
    whole = fma(second.to(tl.float32), scale[2], first.to(tl.float32) * scale[1], FORM)
    return fma(whole, scale[0] * column, sum_, FORM)


@triton.jit
def unpacked(raw, TYPE: tl.constexpr):
    """Both blocks of a pair of `fetch_pieces`: (codes of a row, of the row below, their scales) each."""
    four = words_of(raw[0])
    more, more_below = raw[1], raw[1]
    if has_width(TYPE, 2):
        more, more_below = tl.split(raw[1])
    blocks = ()
    for b in tl.static_range(2):
        row = codes_of(four[b], more, 0, b, TYPE)
        below = codes_of(four[2 + b], more_below, 1, b, TYPE)
        blocks = blocks + ((row, below, scales_at(raw, 0, b, TYPE), scales_at(raw, 1, b, TYPE)),)
    return blocks


@triton.jit
def fetch_packed(base, rows, pairs, top, first, t, g, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """Blocks of COUNT pairs, from pair `first` on, of the sixteen rows from `top` on, as `unpacked` gives them."""
    raws = fetch_pieces(base, rows, pairs, top, first, t, g, COUNT, TYPE)
    blocks = ()
    for i in tl.static_range(COUNT):
        blocks = blocks + unpacked(raws[i], TYPE)
    return blocks


@triton.jit
def add_packed(sums, block, x, column, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The sums of rows and of those below after a block of `fetch_packed`.

    x: two words, 8t … 8t + 7 or, where scales are of sixteen, 4t … 4t + 3 of both sixteens; column: columns' scales.
    """
    row, below, scale, scale_below = block
    if scales_of(TYPE) == 1:
        dots = half_dots(row, below, x, FORM)
        return (
            add_halves(sums[0], dots[0], dots[2], scale, column, FORM),
            add_halves(sums[1], dots[1], dots[3], scale_below, column, FORM),
        )
    else:
        dots = whole_dot(row, below, x, FORM)
        return (
            add_whole(sums[0], dots[0], dots[2], scale, column, TYPE, FORM),
            add_whole(sums[1], dots[1], dots[2], scale_below, column, TYPE, FORM),
        )
