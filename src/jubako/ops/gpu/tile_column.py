"""Units of sixteen rows in tiles times a single column: pairs of blocks take the places of columns.

A tensor core instruction has room for four columns of sixteen bits. Here place t is for pair t of a unit: it holds the
column's bytes for the weights of that pair, and zeros for those of others, so that the sums of four instructions are
the four pairs' and lane t has pair t's. What follows a product is done once a unit instead of once a pair; the order is
that of `tile_steps`, so bits are the same. Tensors are [t 4, g 8, share]: a round is COUNT units for each of SHARES
shares of a row, one after another.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .kinds import has_width, minimum_of, scales_of
from .tensor import plain_dot
from .tile_quants import bases_of, own_lanes, quant_scales, quant_words
from .tile_steps import plain_half_dot


@triton.constexpr_function
def pairs_asm() -> str:
    """Sums of a block of four pairs for both rows: of each pair two words of a row, two of the row eight below; then
    two words of the column for each."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    text = "{.reg .b32 z, c<4>; mov.b32 z, 0;"
    for m in range(4):
        start = "c0, c1, c2, c3" if m else "z, z, z, z"
        a, x = 2 + 4 * m, 18 + 2 * m
        rows, column = f"${a}, ${a + 2}, ${a + 1}, ${a + 3}", f"${x}, ${x + 1}"
        text += f"{product} {{c0, c1, c2, c3}}, {{{rows}}}, {{{column}}}, {{{start}}};"
    return text + "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;}"


@triton.constexpr_function
def half_pairs_asm() -> str:
    """The same of half a block: of each pair a word of a row, one of the row below; then a word of the column."""
    product = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"
    text = "{.reg .b32 z, c<4>; mov.b32 z, 0;"
    for m in range(4):
        start = "c0, c1, c2, c3" if m else "z, z, z, z"
        text += f"{product} {{c0, c1, c2, c3}}, {{${2 + 2 * m}, ${3 + 2 * m}}}, {{${10 + m}}}, {{{start}}};"
    return text + "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;}"


@triton.jit
def pair_dots(w, x, B: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of block B of pair t, for a row and the row below: int32 [t, g, share] each. w: (words, words below) of
    each pair as `quant_words` orders them; x: the column's four words for each, zero in other pairs' places."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            pairs_asm(),
            "=r,=r" + ",r" * 24,
            [
                w[0][0][2 * B], w[0][0][2 * B + 1], w[0][1][2 * B], w[0][1][2 * B + 1],
                w[1][0][2 * B], w[1][0][2 * B + 1], w[1][1][2 * B], w[1][1][2 * B + 1],
                w[2][0][2 * B], w[2][0][2 * B + 1], w[2][1][2 * B], w[2][1][2 * B + 1],
                w[3][0][2 * B], w[3][0][2 * B + 1], w[3][1][2 * B], w[3][1][2 * B + 1],
                x[0][2 * B], x[0][2 * B + 1], x[1][2 * B], x[1][2 * B + 1],
                x[2][2 * B], x[2][2 * B + 1], x[3][2 * B], x[3][2 * B + 1],
            ],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        row, below = tl.zeros_like(w[0][0][0]), tl.zeros_like(w[0][0][0])
        for m in tl.static_range(4):
            row += plain_dot(w[m][0][2 * B], w[m][0][2 * B + 1], x[m][2 * B], x[m][2 * B + 1], FORM)
            below += plain_dot(w[m][1][2 * B], w[m][1][2 * B + 1], x[m][2 * B], x[m][2 * B + 1], FORM)
        return row, below


@triton.jit
def half_pair_dots(w, x, AT: tl.constexpr, FORM: tl.constexpr):
    """The same of half a block, whose word is number AT of its pair's."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            half_pairs_asm(),
            "=r,=r" + ",r" * 12,
            [
                w[0][0][AT], w[0][1][AT], w[1][0][AT], w[1][1][AT], w[2][0][AT], w[2][1][AT], w[3][0][AT], w[3][1][AT],
                x[0][AT], x[1][AT], x[2][AT], x[3][AT],
            ],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        row, below = tl.zeros_like(w[0][0][0]), tl.zeros_like(w[0][0][0])
        for m in tl.static_range(4):
            row += plain_half_dot(w[m][0][AT], x[m][AT], FORM)
            below += plain_half_dot(w[m][1][AT], x[m][AT], FORM)
        return row, below


@triton.jit
def fetch_pairs(base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr, TYPE: tl.constexpr):
    """A round of the sixteen rows from `top` on, from unit `unit` on, on its way: COUNT times what four pairs have for
    themselves, and scales, of which pair t's. Of packed codes ((nibbles, twos, bits) …, (sub, d)) as `fetch_quants`
    has them, of Q8_0 ((words, words below) …, (scales, scales below)) as `fetch_words`."""
    if has_width(TYPE, 8):
        return fetch_wide(base, rows, units, top, unit, COUNT, SHARES)
    else:
        return fetch_packed(base, rows, units, top, unit, COUNT, SHARES, TYPE)


@triton.jit
def fetch_wide(base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr):
    """`fetch_pairs` of Q8_0."""
    t, g, share = own_lanes(SHARES)
    at = top // 8 * units + unit + share * COUNT
    place = at * 512 + tl.arange(0, 8)[None, :, None] * 16 + tl.arange(0, 4)[:, None, None] * 4
    codes = base.to(tl.pointer_type(tl.int32)) + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    scales = (base + tl.cdiv(rows, 16) * 16 * units * 256).to(tl.pointer_type(tl.int32)) + (at * 32 + t * 8 + g)
    raws = ()
    for u in tl.static_range(COUNT):
        pairs = ()
        for m in tl.static_range(4):
            own = codes + (u * 512 + m * 128)
            pairs = pairs + ((tl.load(own), tl.load(own + units * 512)),)
        raws = raws + ((pairs, (tl.load(scales + u * 32), tl.load(scales + (units + u) * 32))),)
    return raws


@triton.jit
def fetch_packed(base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr, TYPE: tl.constexpr):
    """`fetch_pairs` of packed codes."""
    t, g, share = own_lanes(SHARES)
    at = top // 16 * units + unit + share * COUNT
    nibble_base, two_base, bit_base, sub_base, d_base = bases_of(base, rows, units, TYPE)
    place = at * 512 + tl.arange(0, 8)[None, :, None] * 16 + tl.arange(0, 4)[:, None, None] * 4
    nibbles = nibble_base + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    lane = at * 128 + g * 4 + t
    twos, bits = two_base + lane, bit_base + lane
    sub = sub_base + (at * 32 + t * 8 + g)
    d = d_base + (at * 8 + g + t * 0)
    raws = ()
    for u in tl.static_range(COUNT):
        pairs = ()
        for m in tl.static_range(4):
            two, bit = 0, 0
            if has_width(TYPE, 2):
                two = tl.load(twos + (u * 128 + m * 32))
            if has_width(TYPE, 1):
                bit = tl.load(bits + (u * 128 + m * 32))
            pairs = pairs + ((tl.load(nibbles + (u * 512 + m * 128)), two, bit),)
        raws = raws + ((pairs, (tl.load(sub + u * 32), tl.load(d + u * 8))),)
    return raws


@triton.jit
def fetch_column(x, unit, COUNT: tl.constexpr, SHARES: tl.constexpr, TYPE: tl.constexpr):
    """A round of the column: COUNT times (words of pair ⌊g / 2⌋, then pair t's scales and sums) as
    `fetch_quant_columns` has them."""
    q, d, s, blocks = x
    t, g, share = own_lanes(SHARES)
    unit += share * COUNT
    words = q.to(tl.pointer_type(tl.int32))
    place = (unit * 8 + g // 2 * 2) * 4
    mine = unit * 4 + t + g * 0
    scales, sums = (d.to(tl.pointer_type(tl.int64)) + mine, s.to(tl.pointer_type(tl.int64)) + mine)
    columns = ()
    for u in tl.static_range(COUNT):
        if scales_of(TYPE) == 0:
            two = words + ((g % 2 * 2 + t // 2) * blocks * 4 + place + t % 2 * 2 + u * 32)
            pair = tl.arange(0, 2)[None, None, None, :]
            own = tl.split(tl.load(two[:, :, :, None] + pair)) + tl.split(tl.load(two[:, :, :, None] + (pair + 4)))
        else:
            one = words + (g % 2 * 2 * blocks * 4 + place + t + u * 32)
            own = (tl.load(one), tl.load(one + blocks * 4), tl.load(one + 4), tl.load(one + (blocks * 4 + 4)))
        scale = tl.load(scales + u * 4)
        sum0, sum1 = scale, scale
        if minimum_of(TYPE) > 0:
            sum0 = tl.load(sums + u * 4)
            sum1 = tl.load(sums + (blocks // 2 + u * 4))
        columns = columns + ((own, scale, sum0, sum1),)
    return columns


@triton.jit
def in_places(own, SHARES: tl.constexpr):
    """A pair's four words where they are in their place, else zeros, for each pair."""
    t, g, share = own_lanes(SHARES)
    place = g // 2 + t * 0 + share * 0
    x = ()
    for m in tl.static_range(4):
        here = place == m
        x = x + (
            (
                tl.where(here, own[0], 0),
                tl.where(here, own[1], 0),
                tl.where(here, own[2], 0),
                tl.where(here, own[3], 0),
            ),
        )
    return x


@triton.jit
def pairs_words(pairs, TYPE: tl.constexpr):
    """Codes of each pair, as `quant_words` has them of all."""
    w = ()
    for m in tl.static_range(4):
        if has_width(TYPE, 8):
            w = w + (quant_words((pairs[m][0], pairs[m][1]), TYPE),)
        else:
            w = w + (quant_words((pairs[m][0], pairs[m][1], pairs[m][2], 0, 0), TYPE),)
    return w


@triton.jit
def pairs_scales(scales, TYPE: tl.constexpr, FORM: tl.constexpr):
    """`quant_scales` of what `fetch_pairs` fetched."""
    if has_width(TYPE, 8):
        return quant_scales((0, 0, scales[0], scales[1]), TYPE, FORM)
    else:
        return quant_scales((0, 0, 0, scales[0], scales[1]), TYPE, FORM)


@triton.jit
def column_dots(pairs, column, SHARES: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Integer sums of a unit's four pairs, pair t's, as `tile_steps.add_quants` takes them."""
    w = pairs_words(pairs, TYPE)
    x = in_places(column[0], SHARES)
    if scales_of(TYPE) == 1:
        return (
            half_pair_dots(w, x, 0, FORM), half_pair_dots(w, x, 1, FORM),
            half_pair_dots(w, x, 2, FORM), half_pair_dots(w, x, 3, FORM),
        )  # fmt: skip
    else:
        first, second = pair_dots(w, x, 0, FORM), pair_dots(w, x, 1, FORM)
        return first[0], first[1], second[0], second[1]
