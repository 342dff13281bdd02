"""Weights out of their planes: a unit of eight blocks of 32 for a group of rows, as [8, rows, 4] words of bytes.

Lane (j, row) of a unit owns block j: its sixteen-byte pieces are the last dimension. `fetch` only loads, so that many
units can be on their way before `unpack` and `scales` touch the first.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .integer import in_register, look_up, look_up_addends, look_up_eight
from .kinds import (
    addend_word,
    blocks_per_d,
    bytes_before,
    d_bytes,
    has_short_table,
    has_table,
    has_width,
    in_tiles,
    is_,
    sub_bytes,
    table_word,
)
from .tile_blocks import fetch_tiled


@triton.jit
def words(base, place, ROWS: tl.constexpr):
    """Sixteen bytes at 16·place [8, rows, 1] of each lane, as int32 [8, rows, 4]."""
    pointer = base.to(tl.pointer_type(tl.int32))
    return pointer + (place * 4 + tl.arange(0, 4)[None, None, :])


@triton.jit
def fetch(base, rows, blocks, row, unit, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """`fetch_blocks` of `row` [1, rows, 1] as [8, rows, 4]."""
    return fetch_blocks(base, rows, blocks, row, tl.arange(0, 8)[:, None, None], unit, TYPE, EVEN)


@triton.jit
def fetch_blocks(
    base, rows, blocks, row, j, unit, TYPE: tl.constexpr, EVEN: tl.constexpr, DIRECT: tl.constexpr = False
):
    """Everything of block 8·unit + j of `row`, as it lies: (first, second, twos, bits, sub, d).

    base: the matrix, a pointer to bytes; rows, blocks: its size; row and j, which broadcast, are a lane's place; EVEN:
    no unit is partial; DIRECT: scales are read as they are, instead of in words.
    """
    if in_tiles(TYPE):
        return fetch_tiled(base, rows, blocks, row, tl.where(unit * 8 + j < blocks, unit * 8 + j, 0), TYPE)
    else:
        return fetch_planes(base, rows, blocks, row, j, unit, TYPE, EVEN, DIRECT)


@triton.jit
def fetch_planes(base, rows, blocks, row, j, unit, TYPE: tl.constexpr, EVEN: tl.constexpr, DIRECT: tl.constexpr):
    """`fetch_blocks` out of planes."""
    there = unit * 8 + j < blocks
    lane = row * blocks + j
    step = unit * 8  # apart from the lane, so that one address serves units whose number is known
    if not EVEN:
        lane = tl.where(there, lane + step, row * blocks)
        step = 0
    size = rows * blocks
    nothing = tl.zeros_like(lane)
    first, second, high, low, bit, sub, d = nothing, nothing, nothing, nothing, nothing, nothing, nothing
    if has_width(TYPE, 8):
        first = tl.load(words(base, lane, 8) + step * 4)
        second = tl.load(words(base + size * 16, lane, 8) + step * 4)
    if has_width(TYPE, 4):
        first = tl.load(words(base, lane, 8) + step * 4)
    if has_width(TYPE, 2):
        pointer = (base + size * bytes_before(TYPE, 2)).to(tl.pointer_type(tl.int32)) + lane * 2
        low = tl.load(pointer + step * 2)
        high = tl.load(pointer + (step * 2 + 1))
    if has_width(TYPE, 1):
        pointer = (base + size * bytes_before(TYPE, 1)).to(tl.pointer_type(tl.int32)) + lane
        bit = tl.load(pointer + step)
    scales = base + size * bytes_before(TYPE, 0)
    if sub_bytes(TYPE) > 0:
        sub = narrow(scales, lane, step, sub_bytes(TYPE), DIRECT)
        if sub_bytes(TYPE) == 1:
            sub = _signed_byte(sub)
    if d_bytes(TYPE) > 0:
        every: tl.constexpr = blocks_per_d(TYPE)
        at, more = lane, step
        if every > 1:
            of_row = tl.cdiv(blocks, every)
            if DIRECT and EVEN and 8 % every == 0:
                at, more = row * of_row + j // every, unit * (8 // every)
            else:
                at, more = row * of_row + tl.where(there, unit * 8 + j, 0) // every, 0
        d = narrow(scales + size * sub_bytes(TYPE), at, more, d_bytes(TYPE), DIRECT)
    return first, second, low, high, bit, sub, d


@triton.jit
def narrow(base, at, more, BYTES: tl.constexpr, DIRECT: tl.constexpr):
    """Number at + more of an array of unsigned numbers of 1, 2 or 4 bytes, as int32.

    Unless DIRECT read in words of four bytes, so that they can be copied without a register; more: a multiple of 4.
    """
    if DIRECT and BYTES == 1:
        return tl.load(base.to(tl.pointer_type(tl.uint8)) + at + more).to(tl.int32)
    if DIRECT and BYTES == 2:
        return tl.load(base.to(tl.pointer_type(tl.uint16)) + at + more).to(tl.int32)
    EACH: tl.constexpr = 4 // BYTES
    word = tl.load(base.to(tl.pointer_type(tl.int32)) + at // EACH + more // EACH)
    if BYTES == 4:
        return word
    else:
        return (word >> (at % EACH * (8 * BYTES))) & ((1 << (8 * BYTES)) - 1)


@triton.jit
def half(x):
    """The low sixteen bits as an IEEE half, to float32."""
    return (x & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def upper_half(x):
    return ((x >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def unpack(raw, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Codes plus the type's bias as packed bytes int32 [8, rows, 4]: of weights 0-15 of each block, and 16-31."""
    return unpack_words(raw, tl.arange(0, 4)[None, None, :], TYPE, FORM)


@triton.jit
def addends(raw, seed, TYPE: tl.constexpr, FORM: tl.constexpr):
    """What `unpack` gives as a tuple of words for each half, to be added up where they are used.

    seed: numbers of the lanes, never negative, the same for all blocks of a lane.
    """
    if has_table(TYPE) and FORM == 1:
        t0 = in_register(seed, addend_word(TYPE, 0))
        t2 = in_register(seed, addend_word(TYPE, 2))
        a, b, c, d = look_up_addends(raw[0], t0, t2, addend_word(TYPE, 1), addend_word(TYPE, 3))
        return (a, b), (c, d)
    else:
        w = unpack(raw, TYPE, FORM)
        return (w[0],), (w[1],)


@triton.jit
def unpack_words(raw, i, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The same of words i [1, 1, 4] of blocks that lie in any order."""
    first, second, low, high, bit, sub, d = raw
    if has_width(TYPE, 8):
        return first, second
    elif has_table(TYPE):
        return look_up(first, table_word(TYPE, 0), table_word(TYPE, 1), table_word(TYPE, 2), table_word(TYPE, 3), FORM)
    elif has_short_table(TYPE):
        magnitude = tl.where(i < 2, low, high) >> (2 * (i & 1))
        sign = (bit << tl.maximum(2 - i, 0)) >> tl.maximum(i - 2, 0)
        codes = (magnitude & 0x33333333) | (sign & 0x44444444)
        return look_up_eight(codes, table_word(TYPE, 0), table_word(TYPE, 1), FORM)
    elif is_(TYPE, "IQ1_S", "IQ1_M"):  # 8·grid ± 1
        up, down = tl.maximum(3 - 2 * i, 0), tl.maximum(2 * i - 3, 0)
        g = ((sub << (25 - i // 2)) >> 31) & 0x02020202
        h = ((sub << (23 - i // 2)) >> 31) & 0x02020202
        first_eights, second_eights = (low << up) >> down, (high << up) >> down
        return (first_eights & 0x18181818) | (g ^ 0x02020202), (second_eights & 0x18181818) | (h ^ 0x02020202)
    else:
        a = (bit >> i) & 0x01010101
        b = (bit >> (i + 4)) & 0x01010101
        e = (low >> (2 * i)) & 0x03030303
        f = (high >> (2 * i)) & 0x03030303
        if is_(TYPE, "Q1_0"):
            return a * 2, b * 2
        elif is_(TYPE, "Q2_K", "Q2_0", "PQ2_0", "TQ1_0", "TQ2_0"):
            return e, f
        elif is_(TYPE, "Q3_K"):
            return e + a * 4, f + b * 4
        else:
            e4 = first & 0x0F0F0F0F
            f4 = (first >> 4) & 0x0F0F0F0F
            if has_width(TYPE, 2):
                return e4 + e * 16, f4 + f * 16
            elif has_width(TYPE, 1):
                return e4 + a * 16, f4 + b * 16
            else:
                return e4, f4


@triton.jit
def _e8m0_halved(e):
    """2^(e − 128)."""
    normal = ((e - 1) << 23).to(tl.float32, bitcast=True)
    small = (0x00200000 << tl.minimum(e, 1)).to(tl.float32, bitcast=True)
    return tl.where(e > 1, normal, small)


@triton.jit
def _ue4m3_halved(code):
    """Half of an unsigned E4M3 number: quant/fp4.py."""
    magnitude = tl.where(code == 0x7F, 0, code & 0x7F)
    normal = ((magnitude << 20) + (119 << 23)).to(tl.float32, bitcast=True)
    return tl.where(magnitude > 7, normal, magnitude.to(tl.float32) * 0.0009765625)


@triton.jit
def _signed_byte(x):
    return (x << 24) >> 24


@triton.jit
def factors(raw, TYPE: tl.constexpr):
    """(factor, factor or whole number of both halves, offset, minimum of both halves).

    Float32 [8, rows, 1] each; what the type does not have repeats the factor.
    """
    first, second, low, high, bit, sub, d = raw
    if is_(TYPE, "NVFP4"):
        f = _ue4m3_halved(sub & 255)
        return f, f, _ue4m3_halved(sub >> 8), f, f, f
    elif is_(TYPE, "MXFP4"):
        f = _e8m0_halved(d)
        return f, f, f, f, f, f
    else:
        f = half(d)
        if is_(TYPE, "Q4_1", "Q5_1"):
            return f, f, f, upper_half(d), f, f
        elif is_(TYPE, "Q4_K", "Q5_K"):
            offset = (0.0 - upper_half(d)) * (sub >> 8).to(tl.float32)
            f = f * (sub & 255).to(tl.float32)
            return f, f, f, offset, f, f
        elif is_(TYPE, "Q2_K"):
            s, t = (sub & 15).to(tl.float32), ((sub >> 8) & 15).to(tl.float32)
            m, n = ((sub >> 4) & 15).to(tl.float32), (sub >> 12).to(tl.float32)
            return f, s, t, 0.0 - upper_half(d), m, n
        elif is_(TYPE, "Q3_K", "Q6_K"):
            return f, _signed_byte(sub).to(tl.float32), _signed_byte(sub >> 8).to(tl.float32), f, f, f
        elif is_(TYPE, "IQ4_XS", "IQ3_S"):
            f = f * sub.to(tl.float32)
            return f, f, f, f, f, f
        elif is_(TYPE, "IQ3_XXS"):
            f = f * 0.25 * sub.to(tl.float32)
            return f, f, f, f, f, f
        elif is_(TYPE, "IQ2_XXS"):
            f = f * 0.125 * sub.to(tl.float32)
            return f, f, f, f, f, f
        elif is_(TYPE, "IQ2_XS", "IQ2_S"):
            return f * 0.125, (sub & 255).to(tl.float32), (sub >> 8).to(tl.float32), f, f, f
        elif is_(TYPE, "IQ1_S"):
            f = f * 0.125 * (2 * (sub & 7) + 1).to(tl.float32)
            return f, f, f, f, f, f
        elif is_(TYPE, "IQ1_M"):
            s, t = (2 * (sub & 7) + 1).to(tl.float32), (2 * ((sub >> 3) & 7) + 1).to(tl.float32)
            return f * 0.125, s, t, f, f, f
        else:
            return f, f, f, f, f, f
