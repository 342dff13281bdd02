"""Products of matrices in tiles with up to sixteen columns: tensor cores multiply blocks, four columns at a time.

The instruction multiplies 16 rows × 32 weights by 32 × 8 bytes. Its 32 are a block, so that its sums are the exact
integers that `csrc/linear.h` wants; its eight are the low and the high bytes of four columns. Tensors are
[t 4, g 8, p 4]: t and g are a warp's lanes, as the instruction's operands lie; p, the pair of blocks 2p and 2p + 1 of a
unit, lies in registers or over warps. Four columns cost what one costs: the weights' bytes.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half
from .integer import dot4, fma


@triton.constexpr_function
def dots_asm() -> str:
    """Sums of both blocks for both rows, of four words of a row, four of the row eight below, four of a column."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, c<4>, d<4>; mov.b32 z, 0;"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $8, $5, $9}}, {{$12, $13}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{$6, $10, $7, $11}}, {{$14, $15}}, {{z, z, z, z}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;"
        "mad.lo.s32 $2, d1, 256, d0; mad.lo.s32 $3, d3, 256, d2;}"
    )


@triton.jit
def plain_dot(a, b, x, y, FORM: tl.constexpr):
    """Of a row's words a, b [t, g, p] and a column's bytes x, y [t, (column, part), p]: int32 [column, g, p]."""
    both = dot4(a[:, :, None, :], x[:, None, :, :], tl.zeros([4, 8, 8, a.shape[2]], tl.int32), FORM)
    both = tl.sum(dot4(b[:, :, None, :], y[:, None, :, :], both, FORM), axis=0)
    part = tl.arange(0, 2)[None, None, :, None]
    return tl.permute(tl.sum(tl.reshape(both, [8, 4, 2, a.shape[2]]) * (1 + 255 * part), axis=2), [1, 0, 2])


@triton.jit
def block_dots(a, below, x, FORM: tl.constexpr):
    """Σ code·q of both blocks of a pair, for rows a and those eight below: (row, below, row, below), the first two of
    block 0; int32 [column 4, g, p] each.

    a, below: four words [t, g, p] as they follow in tiles; x: those of bytes g = (column, low or high) of four
    columns. A word is an operand of its own, so that nothing but a lane's place, t + 4·g, has to be as the instruction
    wants it; tests hold the compiler to that.
    """
    if FORM == 4:
        return tl.inline_asm_elementwise(
            dots_asm(),
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r",
            [a[0], a[1], a[2], a[3], below[0], below[1], below[2], below[3], x[0], x[1], x[2], x[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (
            plain_dot(a[0], a[1], x[0], x[1], FORM),
            plain_dot(below[0], below[1], x[0], x[1], FORM),
            plain_dot(a[2], a[3], x[2], x[3], FORM),
            plain_dot(below[2], below[3], x[2], x[3], FORM),
        )


@triton.jit
def words_of(x):
    """The four elements of the last dimension, one by one."""
    halves = tl.split(tl.reshape(x, [x.shape[0], x.shape[1], x.shape[2], 2, 2]))
    even = tl.split(halves[0])
    odd = tl.split(halves[1])
    return even[0], odd[0], even[1], odd[1]


@triton.jit
def lanes():
    """(t, g, p) of a tensor's elements."""
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None]
    return t, g, tl.arange(0, 4)[None, None, :]


@triton.jit
def column_words(q, blocks, t, g):
    """Where thread t's two words of a block of bytes g = (column, low or high) are: pointers [4, 8, 1, 2]; a block
    takes four words."""
    own = t * 5 % 4  # t, written so that the compiler sees no longer run to load as one vector and to deal out again
    at = ((g // 2 * 4 + g % 2 * 2 + own // 2) * blocks) * 4 + own % 2 * 2
    return q.to(tl.pointer_type(tl.int32)) + (at[:, :, :, None] + tl.arange(0, 2)[None, None, None, :])


@triton.jit
def fetch_both(codes, scales, below, COUNT: tl.constexpr, PAIRS: tl.constexpr):
    """COUNT pieces of so many block pairs of a tile, and those `below` pieces on, on their way: (words, words below,
    scales, scales below) each."""
    raws = ()
    for u in tl.static_range(COUNT):
        row = tl.load(codes + u * (PAIRS * 128))
        under = tl.load(codes + (below + u) * (PAIRS * 128))
        raws = raws + ((row, under, tl.load(scales + u * (PAIRS * 8)), tl.load(scales + (below + u) * (PAIRS * 8))),)
    return raws


@triton.jit
def fetch_tiles(base, rows, units, top, unit, COUNT: tl.constexpr):
    """COUNT units of the sixteen rows from `top` on, as `fetch_both` gives them."""
    t, g, p = lanes()
    at = top // 8 * units + unit
    place = at * 512 + p * 128 + g * 16 + t * 4
    codes = base.to(tl.pointer_type(tl.int32)) + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    size = tl.cdiv(rows, 16) * 16 * units * 8
    scales = (base + size * 32).to(tl.pointer_type(tl.int32)) + (at * 32 + p * 8 + g)
    return fetch_both(codes, scales, units, COUNT, 4)


@triton.jit
def fetch_columns(x, tokens, unit, COUNT: tl.constexpr, FOURS: tl.constexpr):
    """COUNT units of FOURS groups of four columns of a finely quantised x, on their way: (words, words, scale, scale)
    of both blocks of a pair each."""
    q, d, blocks = x
    t, g, p = lanes()
    place = unit * 8 + p * 2
    low = column_words(q, blocks, t, g) + (place * 4)[:, :, :, None]
    scales = d + (t * blocks + place)
    units = ()
    for u in tl.static_range(COUNT):
        for c in tl.static_range(FOURS):
            live = (4 * c + g // 2 < tokens) & (t + p >= 0)
            near = scales + (tl.minimum(4 * c + t, tokens - 1) - t) * blocks + u * 8
            at = c * 16 * blocks * 4 + u * 32
            words = tl.load(low + at, mask=live[:, :, :, None], other=0)
            far_words = tl.load(low + (at + 4), mask=live[:, :, :, None], other=0)
            units = units + ((words, far_words, tl.load(near), tl.load(near + 1)),)
    return units


@triton.jit
def all_there(units, tokens):
    """Zero, once all that `fetch_columns` fetches is there.

    The assembler would else fetch words where they are wanted: a round trip for each product or two. What hangs on this
    comes after all loads; that it is zero, as there are fewer than 2^30 tokens, the compiler cannot know.
    """
    every = units[0][2].to(tl.int32, bitcast=True)
    for i in tl.static_range(len(units)):
        near, far = tl.split(units[i][0]), tl.split(units[i][1])
        every |= near[0] | far[0] | units[i][2].to(tl.int32, bitcast=True) | units[i][3].to(tl.int32, bitcast=True)
    return every & (tokens >> 30)


@triton.jit
def meet_tiles(
    sums, raws, units, tokens, COUNT: tl.constexpr, FOURS: tl.constexpr, AT_ONCE: tl.constexpr, FORM: tl.constexpr
):
    """The partial sums, a tuple for FOURS groups of four columns, after COUNT units more (`fetch_tiles`,
    `fetch_columns`). AT_ONCE: see `all_there`; it takes registers for all of them."""
    zero = all_there(units, tokens) if AT_ONCE else 0
    for u in tl.static_range(COUNT):
        row, below = words_of(raws[u][0]), words_of(raws[u][1])
        scale, scale_below = raws[u][2], raws[u][3]
        first, first_below = half(scale), half(scale_below)
        second, second_below = half(scale >> 16), half(scale_below >> 16)
        after = ()
        for c in tl.static_range(FOURS):
            words, far_words, d0, d1 = units[u * FOURS + c]
            near, far = tl.split(words), tl.split(far_words)
            dots = block_dots(row, below, (near[0] | zero, near[1], far[0] | zero, far[1]), FORM)
            mine = sums[c]
            mine = (
                fma(dots[0].to(tl.float32), first * d0, mine[0], FORM),
                fma(dots[1].to(tl.float32), first_below * d0, mine[1], FORM),
                fma(dots[2].to(tl.float32), second * d1, mine[2], FORM),
                fma(dots[3].to(tl.float32), second_below * d1, mine[3], FORM),
            )
            after = after + (mine,)
        sums = after
    return sums


@triton.jit
def no_tiles(FOURS: tl.constexpr):
    """Partial sums before the first unit."""
    sums = ()
    for _ in tl.static_range(FOURS):
        zero = tl.zeros([4, 8, 4], tl.float32)
        sums = sums + ((zero, zero, zero, zero),)
    return sums


@triton.jit
def tile_tree(sums):
    """((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)): float32 [column 4, g 8, row or below]. Never -0."""
    every = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3]))
    pairs = tl.sum(tl.reshape(every, [4, 8, 2, 2, 2, 2]), axis=2)
    return tl.sum(tl.sum(pairs, axis=2), axis=2) + 0.0
