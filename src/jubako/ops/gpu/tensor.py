"""Products of matrices in tiles with up to sixteen columns: tensor cores multiply blocks, four columns at a time.

The instruction multiplies 16 rows × 32 weights by 32 × 8 bytes. Its 32 are a block, so that its sums are the exact
integers that `csrc/linear.h` wants; its eight are the low and the high bytes of four columns. Tensors are
[t 4, g 8, p 4, w 4]: t and g are a warp's lanes, as the instruction's operands lie; p, the pair of blocks 2p and
2p + 1 of a unit, lies in registers or over warps. Four columns cost what one costs: the weights' bytes.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half
from .integer import dot4, fma
from .target import wait


@triton.constexpr_function
def dots_asm() -> str:
    """Operands as `block_dots` has them: four words of one row, four of the row eight below, four of a column."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 z, c<4>, d<4>; mov.b32 z, 0;"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $8, $5, $9}}, {{$12, $13}}, {{z, z, z, z}};"
        f"{product} {{d0, d1, d2, d3}}, {{$6, $10, $7, $11}}, {{$14, $15}}, {{z, z, z, z}};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;"
        "mad.lo.s32 $2, d1, 256, d0; mad.lo.s32 $3, d3, 256, d2;}"
    )


@triton.jit
def plain_dots(a, x, FORM: tl.constexpr):
    """Of rows a [t, g, p, (b, h)] and bytes of columns x [t, (column, part), p, (b, h)]: int32 [column, g, p, b]."""
    PAIRS: tl.constexpr = a.shape[2]
    product = dot4(a[:, :, None, :, :], x[:, None, :, :, :], tl.zeros([4, 8, 8, PAIRS, 4], tl.int32), FORM)
    both = tl.sum(tl.reshape(tl.sum(product, axis=0), [8, 8, PAIRS, 2, 2]), axis=4)
    part = tl.arange(0, 2)[None, None, :, None, None]
    whole = tl.sum(tl.reshape(both, [8, 4, 2, PAIRS, 2]) * (1 + 255 * part), axis=2)
    return tl.permute(whole, [1, 0, 2, 3])


@triton.jit
def block_dots(a, below, x, FORM: tl.constexpr):
    """Σ code·q of both blocks of a pair, for rows a and those eight below: int32 [column 4, g, p, (b, row or below)].

    a, below [t, g, p, w]: words w = (b, h) of the tiles; x: those of bytes g = (column, low or high) of four columns.
    """
    if FORM == 4:
        return tl.inline_asm_elementwise(
            dots_asm(), "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r", [a, below, x], dtype=tl.int32, is_pure=True, pack=4
        )
    else:
        return tl.reshape(tl.join(plain_dots(a, x, FORM), plain_dots(below, x, FORM)), [4, 8, a.shape[2], 4])


@triton.jit
def lanes(PARTS: tl.constexpr):
    """(t, g, p, w) of a tensor's elements; PARTS parts have their pairs side by side."""
    t = tl.arange(0, 4)[:, None, None, None]
    g = tl.arange(0, 8)[None, :, None, None]
    p = (tl.arange(0, 4 * PARTS) % 4)[None, None, :, None]
    w = tl.arange(0, 4)[None, None, None, :]
    return t, g, p, w


@triton.jit
def lane_parts(PARTS: tl.constexpr):
    """Which of PARTS parts an element belongs to: int32 [1, 1, 4·PARTS, 1]."""
    return (tl.arange(0, 4 * PARTS) // 4)[None, None, :, None]


@triton.jit
def fetch_tiles(base, rows, units, top, unit, COUNT: tl.constexpr, PARTS: tl.constexpr):
    """COUNT units of the sixteen rows from `top` on, on their way: (words, words below, scales, scales below) each.

    Parts may have a `top` and a first unit of their own.
    """
    t, g, p, w = lanes(PARTS)
    at = top // 8 * units + unit
    codes = base.to(tl.pointer_type(tl.int32)) + (at * 512 + p * 128 + g * 16 + t * 4 + w)
    size = tl.cdiv(rows, 16) * 16 * units * 8
    scales = (base + size * 32).to(tl.pointer_type(tl.int32)) + (at * 32 + p * 8 + g)
    raws = ()
    for u in tl.static_range(COUNT):
        here = (tl.load(codes + u * 512), tl.load(codes + (units + u) * 512))
        raws = raws + ((here[0], here[1], tl.load(scales + u * 32), tl.load(scales + (units + u) * 32)),)
    return raws


@triton.jit
def meet_tiles(
    sums, raws, x, tokens, unit, COUNT: tl.constexpr, PARTS: tl.constexpr, FOURS: tl.constexpr, FORM: tl.constexpr
):
    """The partial sums, a tuple for FOURS groups of four columns, after COUNT units more of a finely quantised x."""
    q, d, blocks = x
    t, g, p, w = lanes(PARTS)
    place = unit * 8 + p * 2
    own = t * 5 % 4  # t, written so that the compiler sees no run to load as one vector and to deal out again
    words = q.to(tl.pointer_type(tl.int32)) + ((g // 2 * 4 + g % 2 * 2 + w % 2) * blocks + place + w // 2) * 4 + own
    scales = d + (t * blocks + place)
    for u in tl.static_range(COUNT):
        row, below, scale, scale_below = raws[u]
        both = tl.where(w % 2 == 0, scale, scale_below)
        factor = half(tl.where(w < 2, both, both >> 16))
        after = ()
        for c in tl.static_range(FOURS):
            live = (4 * c + g // 2 < tokens) & (w >= 0)
            mine = tl.minimum(4 * c + t, tokens - 1) - t
            near = scales + mine * blocks + u * 8
            dx = tl.where(w < 2, tl.load(near), tl.load(near + 1))
            q4 = tl.load(words + c * 16 * blocks * 4 + u * 32, mask=live, other=0)
            dot = block_dots(row, below, q4, FORM).to(tl.float32)
            after = after + (fma(dot, factor * dx, sums[c], FORM),)
        sums = after
    return sums


@triton.jit
def no_tiles(PARTS: tl.constexpr, FOURS: tl.constexpr):
    """Partial sums before the first unit."""
    sums = ()
    for _ in tl.static_range(FOURS):
        sums = sums + (tl.zeros([4, 8, 4 * PARTS, 4], tl.float32),)
    return sums


@triton.jit
def tile_products(
    base, rows, units, top, x, tokens, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums [t = column, g, p, (b, row or below)] of sixteen rows for each group of four columns.

    Over UNITS units from `first` on. Waits for earlier kernels once its first weights are on their way.
    """
    sums = no_tiles(1, FOURS)
    for u in range(first, first + UNITS, STEP):
        raws = fetch_tiles(base, rows, units, top, u, STEP, 1)
        wait(OVERLAP)  # here, as a second copy of the body takes long to compile; later ones pass at once
        sums = meet_tiles(sums, raws, x, tokens, u, STEP, 1, FOURS, FORM)
    return sums


@triton.jit
def tile_tree(sums, PARTS: tl.constexpr):
    """((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)): float32 [column 4, g 8, part, row or below]. Never -0."""
    pairs = tl.sum(tl.reshape(sums, [4, 8, PARTS, 2, 2, 4]), axis=3)
    even_and_odd = tl.reshape(tl.sum(pairs, axis=3), [4, 8, PARTS, 2, 2])
    return tl.sum(even_and_odd, axis=3) + 0.0
