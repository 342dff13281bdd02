"""Sixteen rows of K-quants in tiles times a single column, by one warp: pairs of blocks take the places of columns.

A tensor core instruction has room for four columns of sixteen bits. Here place t is for pair t of a unit: it holds the
column's bytes for the weights of that pair, and zeros for those of others, so that the sums of four instructions are
the four pairs' and lane t has pair t's. What follows a product is done once a unit instead of once a pair; the order is
that of `tile_steps`, so bits are the same. Tensors are [t 4, g 8, 1].
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .kinds import has_width, minimum_of, scales_of
from .target import wait
from .tensor import plain_dot
from .tile_quants import all_quants_there, bases_of, own_lanes, quant_scales, quant_words
from .tile_steps import blocks_step, halves_of_blocks, plain_half_dot


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
    """Σ code·q of block B of pair t, for a row and the row below: int32 [t, g, 1] each. w: (words, words below) of each
    pair as `quant_words` orders them; x: the column's four words for each pair, zero in other pairs' places."""
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
        row, below = tl.zeros([4, 8, 1], tl.int32), tl.zeros([4, 8, 1], tl.int32)
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
        row, below = tl.zeros([4, 8, 1], tl.int32), tl.zeros([4, 8, 1], tl.int32)
        for m in tl.static_range(4):
            row += plain_half_dot(w[m][0][AT], x[m][AT], FORM)
            below += plain_half_dot(w[m][1][AT], x[m][AT], FORM)
        return row, below


@triton.jit
def fetch_pairs(base, rows, units, top, unit, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """COUNT units of the sixteen rows from `top` on, on their way: (nibbles, twos, bits of four pairs, sub, d) each, as
    `fetch_quants` has them of one; sub is pair t's."""
    t, g, _ = own_lanes(1)
    at = top // 16 * units + unit
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
        raws = raws + ((pairs, tl.load(sub + u * 32), tl.load(d + u * 8)),)
    return raws


@triton.jit
def fetch_column(x, unit, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """COUNT units of the column: (words of pair ⌊g / 2⌋, then pair t's scales and sums) as `fetch_quant_columns` has
    them."""
    q, d, s, blocks = x
    t, g, _ = own_lanes(1)
    words = q.to(tl.pointer_type(tl.int32))
    place = (unit * 8 + g // 2 * 2) * 4
    mine = unit * 4 + t + g * 0
    scales, sums = d.to(tl.pointer_type(tl.int64)) + mine, s.to(tl.pointer_type(tl.int64)) + mine
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
def in_places(own, zero):
    """A pair's four words where they are in their place, else zeros, for each pair."""
    place = tl.arange(0, 8)[None, :, None] // 2 + tl.arange(0, 4)[:, None, None] * 0
    x = ()
    for m in tl.static_range(4):
        here = place == m
        x = x + (
            (
                tl.where(here, own[0] | zero, 0),
                tl.where(here, own[1], 0),
                tl.where(here, own[2], 0),
                tl.where(here, own[3], 0),
            ),
        )
    return x


@triton.jit
def column_step(sums, raw, column, zero, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The partial sums (row's and row below's of block 2t, then of block 2t + 1) after a unit more."""
    pairs, sub, d = raw
    w = ()
    for m in tl.static_range(4):
        w = w + (quant_words((pairs[m][0], pairs[m][1], pairs[m][2], sub, d), TYPE),)
    scales = quant_scales((0, 0, 0, sub, d), TYPE, FORM)
    x = in_places(column[0], zero)
    if scales_of(TYPE) == 1:
        first, second = half_pair_dots(w, x, 0, FORM), half_pair_dots(w, x, 1, FORM)
        third, fourth = half_pair_dots(w, x, 2, FORM), half_pair_dots(w, x, 3, FORM)
        return halves_of_blocks(sums, first, second, third, fourth, scales, column, FORM)
    else:
        first, second = pair_dots(w, x, 0, FORM), pair_dots(w, x, 1, FORM)
        return blocks_step(sums, (first[0], first[1], second[0], second[1]), scales, column, FORM)


@triton.jit
def column_products(
    base, rows, units, top, x, tokens, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums of sixteen rows as `column_step` orders them, over UNITS units from `first` on."""
    zeros = tl.zeros([4, 8, 1], tl.float32)
    sums = (zeros, zeros, zeros, zeros)
    for u in range(first, first + UNITS, STEP):
        raws = fetch_pairs(base, rows, units, top, u, STEP, TYPE)
        wait(OVERLAP)  # later ones pass at once
        columns = fetch_column(x, u, STEP, TYPE)
        zero = all_quants_there(columns, tokens)
        for i in tl.static_range(STEP):
            sums = column_step(sums, raws[i], columns[i], zero, TYPE, FORM)
    return sums


@triton.jit
def column_tree(even, odd):
    """((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)) of P_2t and P_2t+1: float32 [g 8]. Never -0."""
    pairs = tl.sum(tl.sum(tl.reshape(tl.join(even, odd), [2, 2, 8, 2]), axis=0), axis=0)
    return tl.sum(pairs, axis=1) + 0.0
