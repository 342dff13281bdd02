"""Units out of tiles (tiles.py) and the columns that they meet: sixteen rows, pairs of blocks [t, g, share · 4 + p].

A round is COUNT units for each of SHARES shares of a row, one after another.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import half, upper_half
from .integer import fma
from .kinds import bytes_before, d_bytes, has_width, minimum_of, scales_of
from .tensor import fetch_both, words_of


@triton.jit
def own_lanes(PAIRS: tl.constexpr):
    """(t, g, p), written so that the compiler sees no runs to load as vectors and to deal out again."""
    t = tl.arange(0, 4)[:, None, None] * 5 % 4
    g = tl.arange(0, 8)[None, :, None] * 9 % 8
    return t, g, tl.arange(0, PAIRS)[None, None, :]


@triton.jit
def bases_of(base, rows, units, TYPE: tl.constexpr):
    """Where nibbles, twos, bits, sub-scales and scales begin; those that a type has not, anywhere."""
    size = tl.cdiv(rows, 16) * 16 * units * 8
    twos = (base + size * bytes_before(TYPE, 2 if has_width(TYPE, 2) else 0)).to(tl.pointer_type(tl.int64))
    bits = (base + size * bytes_before(TYPE, 1 if has_width(TYPE, 1) else 0)).to(tl.pointer_type(tl.int32))
    scales = base + size * bytes_before(TYPE, 0)
    if d_bytes(TYPE) == 4:
        d = (scales + size * 2).to(tl.pointer_type(tl.int64))
    else:
        d = (scales + size * 2).to(tl.pointer_type(tl.int32))
    return (base.to(tl.pointer_type(tl.int32)), twos, bits, scales.to(tl.pointer_type(tl.int64)), d)


@triton.jit
def fetch_quants(base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr, TYPE: tl.constexpr):
    """A round of the sixteen rows from `top` on, from unit `unit` on, on its way: COUNT times (nibbles, twos, bits,
    sub, d), a row's and the row's below in one number but for nibbles [t, g, p, 4] and bits; zero where a type has
    none."""
    t, g, p = own_lanes(4 * SHARES)
    at = top // 16 * units + unit + p // 4 * COUNT
    p = p % 4
    nibble_base, two_base, bit_base, sub_base, d_base = bases_of(base, rows, units, TYPE)
    place = at * 512 + p * 128 + tl.arange(0, 8)[None, :, None] * 16 + tl.arange(0, 4)[:, None, None] * 4
    nibbles = nibble_base + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    lane = at * 128 + p * 32 + g * 4 + t
    twos, bits = two_base + lane, bit_base + lane
    sub = sub_base + (at * 32 + p * 8 + g + t * 0)
    d = d_base + (at * 8 + g + t * 0 + p * 0)
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
def fetch_words(base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr):
    """`fetch_quants` of Q8_0: (words [t, g, p, 4], words below, scales, scales below), both blocks' in one number."""
    t, g, p = own_lanes(4 * SHARES)
    at = top // 8 * units + unit + p // 4 * COUNT
    p = p % 4
    place = at * 512 + p * 128 + tl.arange(0, 8)[None, :, None] * 16 + tl.arange(0, 4)[:, None, None] * 4
    codes = base.to(tl.pointer_type(tl.int32)) + (place[:, :, :, None] + tl.arange(0, 4)[None, None, None, :])
    scales = (base + tl.cdiv(rows, 16) * 16 * units * 256).to(tl.pointer_type(tl.int32))
    return fetch_both(codes, scales + (at * 32 + p * 8 + g + t * 0), units, COUNT, 4)


@triton.jit
def fetch_quant_columns(
    x, tokens, unit, COUNT: tl.constexpr, FOURS: tl.constexpr, SHARES: tl.constexpr, TYPE: tl.constexpr
):
    """A round of FOURS groups of four columns of a finely quantised x, on their way: (words of both blocks of a
    pair, scales, sums of the blocks' first halves, of their second halves) each, both blocks' in one number."""
    q, d, s, blocks = x
    t, g, p = own_lanes(4 * SHARES)
    place = (unit + p // 4 * COUNT) * 8 + p % 4 * 2
    words, scales, sums = (), (), ()
    for c in tl.static_range(FOURS):
        plane = tl.minimum(4 * c + g // 2, tokens - 1) * 4 + g % 2 * 2
        token = tl.minimum(4 * c + t, tokens - 1)
        if scales_of(TYPE) == 0:
            at = (plane + t // 2) * (blocks * 4) + t % 2 * 2 + place * 4
        else:
            at = plane * (blocks * 4) + t + place * 4
        words = words + (q.to(tl.pointer_type(tl.int32)) + at,)
        scales = scales + (d.to(tl.pointer_type(tl.int64)) + (token * (blocks // 2) + place // 2 + g * 0),)
        sums = sums + (s.to(tl.pointer_type(tl.int64)) + (token * blocks + place // 2 + g * 0),)
    units = ()
    for u in tl.static_range(COUNT):
        for c in tl.static_range(FOURS):
            if scales_of(TYPE) == 0:
                two = words[c][:, :, :, None] + tl.arange(0, 2)[None, None, None, :]
                own = tl.split(tl.load(two + u * 32)) + tl.split(tl.load(two + (u * 32 + 4)))
            else:
                one = words[c] + u * 32
                own = (
                    tl.load(one),
                    tl.load(one + blocks * 4),
                    tl.load(one + 4),
                    tl.load(one + (blocks * 4 + 4)),
                )
            scale = tl.load(scales[c] + u * 4)
            sum0, sum1 = scale, scale
            if minimum_of(TYPE) > 0:
                sum0 = tl.load(sums[c] + u * 4)
                sum1 = tl.load(sums[c] + (blocks // 2 + u * 4))
            units = units + ((own, scale, sum0, sum1),)
    return units


@triton.jit
def low_of(x):
    return x.to(tl.int32)


@triton.jit
def high_of(x):
    return (x >> 32).to(tl.int32)


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
    if has_width(TYPE, 8):
        return words_of(raw[0]), words_of(raw[1])
    else:
        nibbles, twos, bit, _, _ = raw
        first, second, first_below, second_below = words_of(nibbles)
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
def byte_above(x, AT: tl.constexpr, ABOVE: tl.constexpr, FORM: tl.constexpr):
    """Byte AT of words as the lowest bits of a float32 whose highest are ABOVE."""
    if FORM == 4:
        bits = tl.inline_asm_elementwise(byte_asm(AT, ABOVE), "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    else:
        bits = ((x >> (8 * AT)) & 255) | (ABOVE << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def signed_byte(x, AT: tl.constexpr, FORM: tl.constexpr):
    """A quarter of signed byte AT, whose highest bit is turned, as float32: of 2^21 the last bit counts a quarter."""
    return byte_above(x, AT, 0x4A, FORM) - (2097152.0 + 32.0)


@triton.jit
def times_byte(factor, x, AT: tl.constexpr, FORM: tl.constexpr):
    """factor (of eleven bits) times byte AT, exactly: of 2^23 the last bit counts one, and 2^23 is taken off again."""
    return fma(factor, byte_above(x, AT, 0x4B, FORM), factor * -8388608.0, FORM)


@triton.jit
def quant_scales(raw, TYPE: tl.constexpr, FORM: tl.constexpr):
    """(factor, scale of the first half or offset, scale of the second half) of a row's block 0, the row below's, then
    of both's block 1: as `tensor.block_dots` orders its sums. Scales of halves are quarters: see `bytes_of`."""
    if has_width(TYPE, 8):
        return ((half(raw[2]),), (half(raw[3]),), (half(raw[2] >> 16),), (half(raw[3] >> 16),))
    else:
        _, _, _, sub, d = raw
        scales = ()
        for b in tl.static_range(2):
            for below in tl.static_range(2):
                own = high_of(sub) if below else low_of(sub)
                if minimum_of(TYPE) > 0:
                    mine = high_of(d) if below else low_of(d)
                    factor = times_byte(half(mine), own, 2 * b, FORM)
                    offset = times_byte(0.0 - upper_half(mine), own, 2 * b + 1, FORM)
                    scales = scales + ((factor, offset, offset),)
                else:
                    factor = upper_half(d) if below else half(d)
                    signed = own ^ ~0x7F7F7F7F
                    first, second = signed_byte(signed, 2 * b, FORM), signed_byte(signed, 2 * b + 1, FORM)
                    scales = scales + ((factor, first, second),)
        return scales
