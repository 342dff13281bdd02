"""K-quants in tiles (tiles.py) times columns, as tensor.py does it for Q8_0: sixteen rows, block pairs [t, g, p]."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half, upper_half
from .integer import dot4, fma
from .kinds import bytes_before, d_bytes, has_width, minimum_of, scales_of
from .tensor import block_dots


@triton.jit
def own_lanes():
    """(t, g, p), written so that the compiler sees no runs to load as vectors and to deal out again."""
    t = tl.arange(0, 4)[:, None, None] * 5 % 4
    g = tl.arange(0, 8)[None, :, None] * 9 % 8
    return t, g, tl.arange(0, 4)[None, None, :]


@triton.jit
def fetch_quants(base, rows, units, top, unit, COUNT: tl.constexpr, TYPE: tl.constexpr):
    """COUNT units of the sixteen rows from `top` on, on their way: (nibbles, twos, bits, sub, d) each, a row's and the
    row's below in one number but for nibbles [t, g, p, 4] and bits; zero where a type has none."""
    t, g, p = own_lanes()
    at = top // 16 * units + unit
    size = tl.cdiv(rows, 16) * 16 * units * 8
    place = at * 512 + p * 128 + tl.arange(0, 8)[None, :, None] * 16 + tl.arange(0, 4)[:, None, None] * 4
    nibbles = base.to(tl.pointer_type(tl.int32)) + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    lane = at * 128 + p * 32 + g * 4 + t
    twos = (base + size * bytes_before(TYPE, 2 if has_width(TYPE, 2) else 0)).to(tl.pointer_type(tl.int64)) + lane
    bits = (base + size * bytes_before(TYPE, 1 if has_width(TYPE, 1) else 0)).to(tl.pointer_type(tl.int32)) + lane
    scales = base + size * bytes_before(TYPE, 0)
    sub = scales.to(tl.pointer_type(tl.int64)) + (at * 32 + p * 8 + g + t * 0)
    if d_bytes(TYPE) == 4:
        d = (scales + size * 2).to(tl.pointer_type(tl.int64)) + (at * 8 + g + t * 0 + p * 0)
    else:
        d = (scales + size * 2).to(tl.pointer_type(tl.int32)) + (at * 8 + g + t * 0 + p * 0)
    raws = ()
    for u in tl.static_range(COUNT):
        two, bit = 0, 0
        if has_width(TYPE, 2):
            two = tl.load(twos + u * 128)
        if has_width(TYPE, 1):
            bit = tl.load(bits + u * 128)
        raws = raws + ((tl.load(nibbles + u * 512), two, bit, tl.load(sub + u * 32), tl.load(d + u * 8)),)
    return raws


@triton.jit
def fetch_quant_columns(x, tokens, unit, COUNT: tl.constexpr, FOURS: tl.constexpr, TYPE: tl.constexpr):
    """COUNT units of FOURS groups of four columns of a finely quantised x, on their way: (words of both blocks of a
    pair, scales, sums of the blocks' first halves, of their second halves) each, both blocks' in one number."""
    q, d, s, blocks = x
    t, g, p = own_lanes()
    place = unit * 8 + p * 2
    plane = g // 2 * 4 + g % 2 * 2
    if scales_of(TYPE) == 0:
        at = (plane + t // 2) * blocks * 4 + t % 2 * 2 + place * 4
    else:
        at = plane * blocks * 4 + t + place * 4
    words = q.to(tl.pointer_type(tl.int32)) + at
    scales = d.to(tl.pointer_type(tl.int64))
    sums = s.to(tl.pointer_type(tl.int64))
    units = ()
    for u in tl.static_range(COUNT):
        for c in tl.static_range(FOURS):
            live = (4 * c + g // 2 < tokens) & (t + p >= 0)
            token = tl.minimum(4 * c + t, tokens - 1) + g * 0
            first = words + (c * 16 * blocks * 4 + u * 32)
            if scales_of(TYPE) == 0:
                pair = tl.arange(0, 2)[None, None, None, :]
                near = tl.load(first[:, :, :, None] + pair, mask=live[:, :, :, None], other=0)
                far = tl.load(first[:, :, :, None] + (pair + 4), mask=live[:, :, :, None], other=0)
                own = tl.split(near) + tl.split(far)
            else:
                own = (
                    tl.load(first, mask=live, other=0),
                    tl.load(first + blocks * 4, mask=live, other=0),
                    tl.load(first + 4, mask=live, other=0),
                    tl.load(first + (blocks * 4 + 4), mask=live, other=0),
                )
            two = (place + u * 8) // 2
            scale = tl.load(scales + (token * (blocks // 2) + two))
            sum0, sum1 = scale, scale
            if minimum_of(TYPE) > 0:
                sum0 = tl.load(sums + (token * blocks + two))
                sum1 = tl.load(sums + (token * blocks + blocks // 2 + two))
            units = units + ((own, scale, sum0, sum1),)
    return units


@triton.jit
def low_of(x):
    return x.to(tl.int32)


@triton.jit
def high_of(x):
    return (x >> 32).to(tl.int32)


@triton.jit
def all_quants_there(units, tokens):
    """`tensor.all_there` of `fetch_quant_columns`."""
    every = low_of(units[0][1])
    for i in tl.static_range(len(units)):
        own = units[i][0]
        every |= own[0] | own[2] | low_of(units[i][1]) | low_of(units[i][2]) | low_of(units[i][3])
        if len(own) == 4:
            every |= own[1] | own[3]
    return every & (tokens >> 30)


@triton.jit
def shifted(x, BY: tl.constexpr):
    """x · 2^BY, of which bits are taken."""
    if BY >= 0:
        return x << BY
    else:
        return x >> (-BY)


@triton.jit
def bytes_of(nibbles, two, bit, BELOW: tl.constexpr, B: tl.constexpr, H: tl.constexpr, TYPE: tl.constexpr):
    """Four weights' codes as bytes: those of a word's low nibbles, or of its high ones for H = 1. Codes of six bits,
    whose highest is turned, come as four times what they are less their bias."""
    if has_width(TYPE, 2):
        codes = shifted(nibbles, 2 - 4 * H) & 0x3C3C3C3C
        codes |= shifted(two, 6 - 2 * (2 * B + H)) & ~0x3F3F3F3F
    else:
        codes = (nibbles >> (4 * H)) & 0x0F0F0F0F
        if has_width(TYPE, 1):
            codes |= shifted(bit, 4 - (4 * BELOW + 2 * B + H)) & 0x10101010
    return codes


@triton.jit
def quant_words(raw, TYPE: tl.constexpr):
    """Codes of a unit's pairs: four words of a row, four of the row below."""
    nibbles, twos, bit, _, _ = raw
    even, odd = tl.split(tl.reshape(nibbles, [4, 8, 4, 2, 2]))
    first, first_below = tl.split(even)
    second, second_below = tl.split(odd)
    two, two_below = twos, twos
    if has_width(TYPE, 2):
        two, two_below = low_of(twos) ^ ~0x55555555, high_of(twos) ^ ~0x55555555
    row = (
        bytes_of(first, two, bit, 0, 0, 0, TYPE),
        bytes_of(first, two, bit, 0, 0, 1, TYPE),
        bytes_of(second, two, bit, 0, 1, 0, TYPE),
        bytes_of(second, two, bit, 0, 1, 1, TYPE),
    )
    below = (
        bytes_of(first_below, two_below, bit, 1, 0, 0, TYPE),
        bytes_of(first_below, two_below, bit, 1, 0, 1, TYPE),
        bytes_of(second_below, two_below, bit, 1, 1, 0, TYPE),
        bytes_of(second_below, two_below, bit, 1, 1, 1, TYPE),
    )
    return row, below


@triton.constexpr_function
def byte_asm(at: int, above: int) -> str:
    """Byte `at` of a word as the lowest bits of a float."""
    return f"prmt.b32 $0, $1, {above << 24}, {0x7440 + at};"


@triton.jit
def byte_of(x, AT: tl.constexpr, SIGNED: tl.constexpr, FORM: tl.constexpr):
    """Byte AT of words as float32; signed ones, whose highest bit is turned, as a quarter of what they are."""
    ABOVE: tl.constexpr = 0x4A if SIGNED else 0x4B  # of 2^21, where a float's last bit counts a quarter; of 2^23
    if FORM == 4:
        bits = tl.inline_asm_elementwise(byte_asm(AT, ABOVE), "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    else:
        bits = ((x >> (8 * AT)) & 255) | (ABOVE << 24)
    return bits.to(tl.float32, bitcast=True) - (2097152.0 + 32.0 if SIGNED else 8388608.0)


@triton.jit
def quant_scales(raw, TYPE: tl.constexpr, FORM: tl.constexpr):
    """(factor, scale of the first half or offset, scale of the second half) of a row's block 0, the row below's, then
    of both's block 1: as `tensor.block_dots` orders its sums. Scales of halves are quarters: see `bytes_of`."""
    _, _, _, sub, d = raw
    scales = ()
    for b in tl.static_range(2):
        for below in tl.static_range(2):
            own = high_of(sub) if below else low_of(sub)
            if minimum_of(TYPE) > 0:
                mine = high_of(d) if below else low_of(d)
                factor = half(mine) * byte_of(own, 2 * b, False, FORM)
                offset = (0.0 - upper_half(mine)) * byte_of(own, 2 * b + 1, False, FORM)
                scales = scales + ((factor, offset, offset),)
            else:
                factor = upper_half(d) if below else half(d)
                signed = own ^ ~0x7F7F7F7F
                first, second = byte_of(signed, 2 * b, True, FORM), byte_of(signed, 2 * b + 1, True, FORM)
                scales = scales + ((factor, first, second),)
    return scales


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
def quants_step(sums, words, scales, column, zero, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Four partial sums of four columns after a unit more."""
    row, below = words
    x, d, sum0, sum1 = column
    d0, d1 = low_of(d).to(tl.float32, bitcast=True), high_of(d).to(tl.float32, bitcast=True)
    if scales_of(TYPE) == 1:
        first = half_dots(row[0], row[1], below[0], below[1], x[0] | zero, x[1], FORM)
        second = half_dots(row[2], row[3], below[2], below[3], x[2], x[3], FORM)
        return (
            halves_step(sums[0], (first[0], first[1]), scales[0], d0, FORM),
            halves_step(sums[1], (first[2], first[3]), scales[1], d0, FORM),
            halves_step(sums[2], (second[0], second[1]), scales[2], d1, FORM),
            halves_step(sums[3], (second[2], second[3]), scales[3], d1, FORM),
        )
    else:
        dots = block_dots(row, below, (x[0] | zero, x[1], x[2], x[3]), FORM)
        s0 = d0 * (low_of(sum0) + low_of(sum1)).to(tl.float32)
        s1 = d1 * (high_of(sum0) + high_of(sum1)).to(tl.float32)
        return (
            minimum_step(sums[0], dots[0], scales[0], d0, s0, FORM),
            minimum_step(sums[1], dots[1], scales[1], d0, s0, FORM),
            minimum_step(sums[2], dots[2], scales[2], d1, s1, FORM),
            minimum_step(sums[3], dots[3], scales[3], d1, s1, FORM),
        )


@triton.jit
def meet_quants(
    sums, raws, units, tokens,
    COUNT: tl.constexpr, FOURS: tl.constexpr, AT_ONCE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """`tensor.meet_tiles` of what `fetch_quants` and `fetch_quant_columns` give."""
    zero = all_quants_there(units, tokens) if AT_ONCE else 0
    for u in tl.static_range(COUNT):
        words, scales = quant_words(raws[u], TYPE), quant_scales(raws[u], TYPE, FORM)
        after = ()
        for c in tl.static_range(FOURS):
            after = after + (quants_step(sums[c], words, scales, units[u * FOURS + c], zero, TYPE, FORM),)
        sums = after
    return sums
