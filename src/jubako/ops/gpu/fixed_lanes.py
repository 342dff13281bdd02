"""Sixteen rows in tiles times a single column of floats: blocks take the places of columns.

A tensor core instruction has room for four columns of sixteen bits. Place t is for every fourth block here: it holds
the column's bytes for that block and zeros for others, so that the sums of four instructions are the four blocks' and
lane t has block t's. What follows a product is done once for four blocks; the order is that of `fixed_pairs`.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .fixed_pairs import add_dots, fetch_factors
from .kinds import minimum_of, scales_of
from .room import found, found_two
from .tensor import plain_dot
from .tile_steps import plain_half_dot


@triton.constexpr_function
def places_asm(count: int) -> str:
    """Sums of a place's block for a row and the one eight below, of two words of a row and two of the row below of each
    of `count` blocks, then two of the column for each."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    text = "{.reg .b32 z, c<4>; mov.b32 z, 0;"
    for m in range(count):
        start = "c0, c1, c2, c3" if m else "z, z, z, z"
        a, x = 2 + 4 * m, 2 + 4 * count + 2 * m
        rows, column = f"${a}, ${a + 2}, ${a + 1}, ${a + 3}", f"${x}, ${x + 1}"
        text += f"{product} {{c0, c1, c2, c3}}, {{{rows}}}, {{{column}}}, {{{start}}};"
    return text + "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;}"


@triton.constexpr_function
def half_places_asm(count: int) -> str:
    """The same of half a block: of each a word of a row, one of the row below; then one of the column."""
    product = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"
    text = "{.reg .b32 z, c<4>; mov.b32 z, 0;"
    for m in range(count):
        start = "c0, c1, c2, c3" if m else "z, z, z, z"
        a = 2 + 2 * m
        text += f"{product} {{c0, c1, c2, c3}}, {{${a}, ${a + 1}}}, {{${2 + 2 * count + m}}}, {{{start}}};"
    return text + "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;}"


@triton.constexpr_function
def operands(count: int) -> str:
    return "=r,=r" + ",r" * count


@triton.jit
def words_in_places(codes, x, HALF: tl.constexpr):
    """The operands of `places_asm`, or those of `half_places_asm` for half 0 or 1."""
    g = tl.arange(0, 8)[None, :, None]
    rows, columns = (), ()
    for m in tl.static_range(len(codes)):
        row, below = codes[m]
        here = (g // 2 == m) & (x[0] == x[0])
        if HALF < 0:
            rows = rows + (row[0], row[1], below[0], below[1])
            columns = columns + (tl.where(here, x[0], 0), tl.where(here, x[1], 0))
        else:
            rows = rows + (row[HALF], below[HALF])
            columns = columns + (tl.where(here, x[HALF], 0),)
    return rows + columns


@triton.jit
def place_dots(codes, x, HALF: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of block t of up to four of `fetch_codes`, for rows and those below: int32 [t, g, w] each. x: two words
    of block ⌊g / 2⌋; HALF: -1 for whole blocks."""
    COUNT: tl.constexpr = len(codes)
    words = words_in_places(codes, x, HALF)
    if FORM == 4:
        ASM: tl.constexpr = places_asm(COUNT) if HALF < 0 else half_places_asm(COUNT)
        EACH: tl.constexpr = 6 if HALF < 0 else 3
        return tl.inline_asm_elementwise(
            ASM, operands(COUNT * EACH), words, dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        row, below = words[0] * 0, words[0] * 0
        for m in tl.static_range(COUNT):
            if HALF < 0:
                near, far = words[4 * COUNT + 2 * m], words[4 * COUNT + 2 * m + 1]
                row += plain_dot(words[4 * m], words[4 * m + 1], near, far, FORM)
                below += plain_dot(words[4 * m + 2], words[4 * m + 3], near, far, FORM)
            else:
                row += plain_half_dot(words[2 * m], words[2 * COUNT + m], FORM)
                below += plain_half_dot(words[2 * m + 1], words[2 * COUNT + m], FORM)
        return row, below


@triton.jit
def over_lanes(x, FORM: tl.constexpr):
    """(x_0 + x_1) + (x_2 + x_3) of lanes t, in all of them."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            "{.reg .f32 a, b; shfl.sync.bfly.b32 a, $1, 1, 31, -1; add.f32 b, $1, a;"
            "shfl.sync.bfly.b32 a, b, 2, 31, -1; add.f32 $0, b, a;}",
            "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        t = tl.arange(0, 4)[:, None, None]
        first = tl.sum(tl.where(t == 0, x, 0.0), axis=0) + tl.sum(tl.where(t == 1, x, 0.0), axis=0)
        second = tl.sum(tl.where(t == 2, x, 0.0), axis=0) + tl.sum(tl.where(t == 3, x, 0.0), axis=0)
        return tl.broadcast_to((first + second)[None, :, :], x.shape)


@triton.jit
def fetch_lane_factors(base, rows, pairs, top, first, w, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """`fixed_pairs.fetch_factors` of COUNT blocks from `first` on, lane t block 4i + t of the i-th each; those beyond
    the last have the last's."""
    t = tl.arange(0, 4)[:, None, None] * 5 % 4
    g = tl.arange(0, 8)[None, :, None] * 9 % 8
    factors = ()
    for i in tl.static_range((COUNT + 3) // 4):
        block = first + tl.minimum(4 * i + t, COUNT - 1) + w * 0
        factors = factors + (fetch_factors(base, rows, pairs, top, block, t, g, TYPE),)
    return factors


@triton.jit
def add_places(sums, codes, factors, x, column, q, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Lanes' sums, of rows and of those below, after up to four blocks of `fetch_codes`. factors: lane t's of
    `fetch_lane_factors`; x: two words of block ⌊g / 2⌋; column: the scale of lane t's block; q: its sum of codes times
    that, zero beyond the last block."""
    if scales_of(TYPE) == 1:
        first, second = place_dots(codes, x, 0, FORM), place_dots(codes, x, 1, FORM)
    else:
        first = place_dots(codes, x, -1, FORM)
        second = first
    return (
        add_dots(sums[0], first[0], second[0], factors[0], column, q, TYPE, FORM),
        add_dots(sums[1], first[1], second[1], factors[1], column, q, TYPE, FORM),
    )


@triton.jit
def lane_products(
    codes, factors, room, words, scales, sums_of_codes, COUNT: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Products of COUNT blocks with a column, of rows and of those below, in all lanes t. words, scales, sums_of_codes:
    where, in a room, two words of block 4i + ⌊g / 2⌋ lie and what belongs to block 4i + t."""
    zero = (words[0] * 0).to(tl.float32)
    sums = (zero, zero)
    t = tl.arange(0, 4)[:, None, None]
    for i in tl.static_range((COUNT + 3) // 4):
        x = found_two(room, words[i], FORM)
        column = found(room, scales[i], FORM)
        q = column
        if minimum_of(TYPE) > 0:
            q = tl.where(4 * i + t < COUNT, found(room, sums_of_codes[i], FORM), 0.0)
        own = ()
        for m in tl.static_range(4):
            own = own + (codes[4 * i + m],) if 4 * i + m < COUNT else own
        sums = add_places(sums, own, factors[i], x, column, q, TYPE, FORM)
    return over_lanes(sums[0], FORM), over_lanes(sums[1], FORM)
