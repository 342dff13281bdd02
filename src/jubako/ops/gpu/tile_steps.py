"""Products of tiles: what `tile_quants` fetched meets columns, in the order of csrc/linear.h."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .integer import dot4, fma
from .kinds import minimum_of, scales_of
from .tensor import block_dots
from .tile_quants import high_of, low_of, quant_scales, quant_words


@triton.constexpr_function
def half_dots_asm() -> str:
    """Sums of both halves of a block for both rows, of two words of a row, two of the row eight below, two of a
    column."""
    product = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, c<4>, d<4>; mov.b32 z, 0;"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $6}}, {{$8}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{$5, $7}}, {{$9}}, {{z, z, z, z}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, d1, 256, d0;"
        "mad.lo.s32 $2, c3, 256, c2; mad.lo.s32 $3, d3, 256, d2;}"
    )


@triton.jit
def plain_half_dot(a, x, FORM: tl.constexpr):
    """Of a row's words a [t, g, p] and a column's bytes x [t, (column, part), p]: int32 [column, g, p]."""
    both = dot4(a[:, :, None, :], x[:, None, :, :], tl.zeros([4, 8, 8, a.shape[2]], tl.int32), FORM)
    both = tl.sum(both, axis=0)
    part = tl.arange(0, 2)[None, None, :, None]
    return tl.permute(tl.sum(tl.reshape(both, [8, 4, 2, a.shape[2]]) * (1 + 255 * part), axis=2), [1, 0, 2])


@triton.jit
def half_dots(a, b, below_a, below_b, x, y, FORM: tl.constexpr):
    """Σ code·q of both halves of a block: (row's, row's, row below's, row below's), int32 [column 4, g, p]. Operands as
    in `tensor.block_dots`, of sixteen weights each."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            half_dots_asm(),
            "=r,=r,=r,=r,r,r,r,r,r,r",
            [a, b, below_a, below_b, x, y],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (
            plain_half_dot(a, x, FORM),
            plain_half_dot(b, y, FORM),
            plain_half_dot(below_a, x, FORM),
            plain_half_dot(below_b, y, FORM),
        )


@triton.jit
def halves_step(p, dots, scale, dx, FORM: tl.constexpr):
    """P_j after one more block, whose halves have scales of their own."""
    both = dots[0].to(tl.float32) * scale[1] + dots[1].to(tl.float32) * scale[2]
    return fma(both, scale[0] * dx, p, FORM)


@triton.jit
def minimum_step(p, dot, scale, dx, dx_sum, FORM: tl.constexpr):
    """The same of a block with one scale, and an offset times the column's sum."""
    return fma(scale[1], dx_sum, fma(dot.to(tl.float32), scale[0] * dx, p, FORM), FORM)


@triton.jit
def plain_step(p, dot, scale, dx, FORM: tl.constexpr):
    """The same of a block with one scale and no offset."""
    return fma(dot.to(tl.float32), scale[0] * dx, p, FORM)


@triton.jit
def blocks_step(sums, dots, scales, column, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The partial sums, ordered as `tensor.block_dots` does it, after a pair of blocks with one scale each."""
    _, d, sum0, sum1 = column
    d0, d1 = (low_of(d).to(tl.float32, bitcast=True), high_of(d).to(tl.float32, bitcast=True))
    if minimum_of(TYPE) == 0:
        return (
            plain_step(sums[0], dots[0], scales[0], d0, FORM),
            plain_step(sums[1], dots[1], scales[1], d0, FORM),
            plain_step(sums[2], dots[2], scales[2], d1, FORM),
            plain_step(sums[3], dots[3], scales[3], d1, FORM),
        )
    else:
        s0 = d0 * (low_of(sum0) + low_of(sum1)).to(tl.float32)
        s1 = d1 * (high_of(sum0) + high_of(sum1)).to(tl.float32)
        return (
            minimum_step(sums[0], dots[0], scales[0], d0, s0, FORM),
            minimum_step(sums[1], dots[1], scales[1], d0, s0, FORM),
            minimum_step(sums[2], dots[2], scales[2], d1, s1, FORM),
            minimum_step(sums[3], dots[3], scales[3], d1, s1, FORM),
        )


@triton.jit
def halves_of_blocks(sums, first, second, third, fourth, scales, column, FORM: tl.constexpr):
    """The same with scales for halves: sums of a row and the row below for the first block's, then the second's."""
    d = column[1]
    d0, d1 = (low_of(d).to(tl.float32, bitcast=True), high_of(d).to(tl.float32, bitcast=True))
    return (
        halves_step(sums[0], (first[0], second[0]), scales[0], d0, FORM),
        halves_step(sums[1], (first[1], second[1]), scales[1], d0, FORM),
        halves_step(sums[2], (third[0], fourth[0]), scales[2], d1, FORM),
        halves_step(sums[3], (third[1], fourth[1]), scales[3], d1, FORM),
    )


@triton.jit
def quants_dots(words, column, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Integer sums of a unit's pairs with four columns, as `add_quants` takes them."""
    row, below = words
    x = column[0]
    if scales_of(TYPE) == 1:
        a = half_dots(row[0], row[1], below[0], below[1], x[0], x[1], FORM)
        b = half_dots(row[2], row[3], below[2], below[3], x[2], x[3], FORM)
        return (a[0], a[2]), (a[1], a[3]), (b[0], b[2]), (b[1], b[3])
    else:
        return block_dots(row, below, x, FORM)


@triton.jit
def add_quants(sums, dots, scales, column, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The four partial sums after a unit more."""
    if scales_of(TYPE) == 1:
        return halves_of_blocks(sums, dots[0], dots[1], dots[2], dots[3], scales, column, FORM)
    else:
        return blocks_step(sums, dots, scales, column, TYPE, FORM)


@triton.jit
def meet_quants(sums, raws, units, FOURS: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The partial sums, a tuple for FOURS groups of four columns, after units more (`fetch_quants`,
    `fetch_quant_columns`)."""
    for u in tl.static_range(len(raws)):
        words, scales = quant_words(raws[u], TYPE), quant_scales(raws[u], TYPE, FORM)
        after = ()
        for c in tl.static_range(FOURS):
            column = units[u * FOURS + c]
            dots = quants_dots(words, column, TYPE, FORM)
            after = after + (add_quants(sums[c], dots, scales, column, TYPE, FORM),)
        sums = after
    return sums
