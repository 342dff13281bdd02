"""`repack_into`: a file's blocks to planes in one pass on the GPU, for experts that come and go; else `planar.repack`.

A program takes some blocks of 32 weights as [blocks, 4]: quarter i has weights 4i … 4i+3 and 16+4i … 16+4i+3, as two
words of four codes, one a byte. A type's function makes these words; how planes hold them is the same for all types.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ...quant import BlockType, codebooks
from .kinds import is_
from .planar import LAYOUTS, repack

TYPES = ("Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "MXFP4", "Q4_K", "IQ4_XS", "IQ2_XXS", "IQ2_S", "IQ3_XXS", "IQ3_S")
BLOCKS = 256  # of a program


@triton.jit
def byte_at(pointer):
    return tl.load(pointer).to(tl.int32)


@triton.jit
def word_at(pointer):
    """Four bytes from anywhere, the lowest first."""
    low = byte_at(pointer) | (byte_at(pointer + 1) << 8)
    return low | (byte_at(pointer + 2) << 16) | (byte_at(pointer + 3) << 24)


@triton.jit
def each_bit(nibble):
    """Bits 0 … 3 as the lowest bits of four bytes."""
    return (nibble * 0x204081) & 0x01010101


@triton.jit
def even(index):
    """Seven sign bits and the eighth that makes their number even."""
    folded = index ^ (index >> 4)
    return index | (((0x6996 >> (folded & 15)) & 1) << 7)


@triton.jit
def signed_quad(grid, index, signs, place, BIT: tl.constexpr):
    """Four codes of a codebook entry. signs: of 8 weights; place: 0 or 1, which half of them."""
    return tl.load(grid + index) | (each_bit((signs >> (4 * place)) & 15) << BIT)


@triton.jit
def quads(p, j, i, grid, TYPE: tl.constexpr):
    """The quarter's two words of codes. p: the stored block, j: which 32 weights of it."""
    if is_(TYPE, "Q8_0"):
        return word_at(p + 2 + 4 * i), word_at(p + 18 + 4 * i)
    elif is_(TYPE, "Q4_0", "IQ4_NL", "Q4_1", "MXFP4"):
        AT: tl.constexpr = 4 if is_(TYPE, "Q4_1") else 1 if is_(TYPE, "MXFP4") else 2
        w = word_at(p + AT + 4 * i)
        return w & 0x0F0F0F0F, (w >> 4) & 0x0F0F0F0F
    elif is_(TYPE, "IQ4_XS"):
        w = word_at(p + 8 + 16 * j + 4 * i)
        return w & 0x0F0F0F0F, (w >> 4) & 0x0F0F0F0F
    elif is_(TYPE, "Q4_K"):
        at = p + 16 + 32 * (j // 2) + 4 * i
        shift = 4 * (j % 2)
        return (word_at(at) >> shift) & 0x0F0F0F0F, (word_at(at + 16) >> shift) & 0x0F0F0F0F
    elif is_(TYPE, "IQ3_XXS"):
        words = word_at(p + 66 + 4 * j)
        low = even((words >> (7 * (i // 2))) & 127)
        high = even((words >> (14 + 7 * (i // 2))) & 127)
        at = p + 2 + 8 * j + i
        a = signed_quad(grid, byte_at(at), low, i % 2, 3)
        return a, signed_quad(grid, byte_at(at + 4), high, i % 2, 3)
    elif is_(TYPE, "IQ3_S"):
        extra = byte_at(p + 66 + j)
        at = p + 2 + 8 * j + i
        sign = p + 74 + 4 * j + i // 2
        a = signed_quad(grid, byte_at(at) | (((extra >> i) & 1) << 8), byte_at(sign), i % 2, 3)
        return a, signed_quad(grid, byte_at(at + 4) | (((extra >> (i + 4)) & 1) << 8), byte_at(sign + 2), i % 2, 3)
    elif is_(TYPE, "IQ2_XXS"):
        words = word_at(p + 6 + 8 * j)
        low = even((words >> (7 * (i // 2))) & 127)
        high = even((words >> (14 + 7 * (i // 2))) & 127)
        at = p + 2 + 8 * j + i // 2
        a = signed_quad(grid, byte_at(at) * 2 + i % 2, low, i % 2, 2)
        return a, signed_quad(grid, byte_at(at + 2) * 2 + i % 2, high, i % 2, 2)
    else:
        tl.static_assert(is_(TYPE, "IQ2_S"))
        extra = byte_at(p + 66 + j)
        g = i // 2
        at = p + 2 + 4 * j + g
        a = signed_quad(grid, (byte_at(at) | (((extra >> (2 * g)) & 3) << 8)) * 2 + i % 2, byte_at(at + 32), i % 2, 2)
        index = byte_at(at + 2) | (((extra >> (2 * g + 4)) & 3) << 8)
        return a, signed_quad(grid, index * 2 + i % 2, byte_at(at + 34), i % 2, 2)


@triton.jit
def k_scale(p, j):
    """Scale and minimum of block j as two bytes of a word."""
    first = byte_at(p + 4 + j % 4)
    second = byte_at(p + 8 + j % 4)
    shared = byte_at(p + 12 + j % 4)
    scale = tl.where(j < 4, first & 63, (shared & 15) | ((first >> 2) & 48))
    return scale | (tl.where(j < 4, second & 63, (shared >> 4) | ((second >> 2) & 48)) << 8)


@triton.jit
def sub_scales(p, j, TYPE: tl.constexpr):
    """The block's sub-scales as the low bytes of a word."""
    if is_(TYPE, "Q4_K"):
        return k_scale(p, j)
    elif is_(TYPE, "IQ4_XS"):
        low = (byte_at(p + 4 + j // 2) >> (4 * (j % 2))) & 15
        return (low | (((byte_at(p + 2 + j // 4) >> (2 * (j % 4))) & 3) << 4)) - 32
    elif is_(TYPE, "IQ3_XXS"):
        return 2 * (byte_at(p + 69 + 4 * j) >> 4) + 1
    elif is_(TYPE, "IQ2_XXS"):
        return 2 * (byte_at(p + 9 + 8 * j) >> 4) + 1
    elif is_(TYPE, "IQ3_S"):
        return 2 * ((byte_at(p + 106 + j // 2) >> (4 * (j % 2))) & 15) + 1
    else:
        tl.static_assert(is_(TYPE, "IQ2_S"))
        two = byte_at(p + 74 + j)
        return (2 * (two & 15) + 1) | ((2 * (two >> 4) + 1) << 8)


@triton.jit
def packed(quad):
    """Four bytes below 16 to four nibbles."""
    pairs = (quad | (quad >> 4)) & 0x00FF00FF
    return (pairs | (pairs >> 8)) & 0xFFFF


@triton.jit
def repack_tile(
    raw, out, tile, grid, blocks,
    TYPE: tl.constexpr, BYTES: tl.constexpr, EACH: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
    WORDS: tl.constexpr, SUB: tl.constexpr, D: tl.constexpr, EVERY: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """COUNT blocks of a matrix. blocks: of 32 weights in all; EACH: of them in a stored block of BYTES bytes.

    W0, W1: bits of the planes of codes; WORDS: in the order for look-ups; SUB, D: bytes of sub-scales a block and of
    scales every EVERY blocks.
    """
    b = tile * COUNT + tl.arange(0, COUNT)
    there = b < blocks
    b = tl.minimum(b, blocks - 1)  # the last block is written more than once, always the same
    p = raw + (b // EACH).to(tl.int64) * BYTES
    j = b % EACH
    i = tl.arange(0, 4)
    live = there[:, None] & (i >= 0)[None, :]
    to = out + b.to(tl.int64) * (W0 * 4)
    plane = blocks.to(tl.int64)
    a, c = quads(p[:, None], j[:, None], i[None, :], grid, TYPE)
    if W0 == 8:
        first = (out + b.to(tl.int64) * 16).to(tl.pointer_type(tl.int32))
        tl.store(first[:, None] + i[None, :], a, mask=live)
        tl.store(first[:, None] + plane * 4 + i[None, :], c, mask=live)
    elif W0 == 4:
        words = to.to(tl.pointer_type(tl.int32))[:, None] + i[None, :]
        if WORDS:
            tl.store(words, packed(a) | (packed(c) << 16), mask=live)
        else:
            tl.store(words, (a & 0x0F0F0F0F) | ((c & 0x0F0F0F0F) << 4), mask=live)
    else:
        tl.static_assert(WORDS)
        both = packed(a) | (packed(c) << 16)
        two = (both & 0x33333333) << (2 * (i % 2))[None, :]
        words = to.to(tl.pointer_type(tl.int32))
        tl.store(words, tl.sum(tl.where(i < 2, two, 0), 1), mask=there)
        tl.store(words + 1, tl.sum(tl.where(i < 2, 0, two), 1), mask=there)
    end = out + plane * (W0 * 4)
    if W1 == 1:
        tl.static_assert(WORDS and W0 == 2)
        bits = ((both >> 2) & 0x11111111) << i[None, :]
        tl.store((end + b.to(tl.int64) * 4).to(tl.pointer_type(tl.int32)), tl.sum(bits, 1), mask=there)
        end += plane * 4
    if SUB > 0:
        scales = sub_scales(p, j, TYPE)
        for k in tl.static_range(SUB):
            tl.store(end + b.to(tl.int64) * SUB + k, ((scales >> (8 * k)) & 255).to(tl.uint8), mask=there)
        end += plane * SUB
    if D > 0:
        mine = there & (b % EVERY == 0)
        for k in tl.static_range(D):
            tl.store(end + (b // EVERY).to(tl.int64) * D + k, tl.load(p + k), mask=mine)


@triton.jit
def repack_kernel(
    raw, raw_stride, out, out_stride, grid, blocks,
    TYPE: tl.constexpr, BYTES: tl.constexpr, EACH: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
    WORDS: tl.constexpr, SUB: tl.constexpr, D: tl.constexpr, EVERY: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Program (tile, matrix): see `repack_tile`."""
    mine = tl.program_id(1).to(tl.int64)
    repack_tile(
        raw + mine * raw_stride, out + mine * out_stride, tl.program_id(0), grid, blocks,
        TYPE, BYTES, EACH, W0, W1, WORDS, SUB, D, EVERY, COUNT,
    )  # fmt: skip


def form_of(kind: BlockType) -> dict[str, Any]:
    """The compile-time arguments of `repack_tile` for a type of TYPES."""
    layout = LAYOUTS[kind.name]
    widths = (*layout.widths, 0)[:2]
    return {
        "TYPE": kind.id, "BYTES": kind.bytes, "EACH": kind.weights // 32, "W0": widths[0], "W1": widths[1],
        "WORDS": layout.words, "SUB": layout.sub, "D": layout.d, "EVERY": layout.every, "COUNT": BLOCKS,
    }  # fmt: skip


@cache
def grid_of(name: str, device: torch.device) -> torch.Tensor:
    """A codebook as numbers of its magnitudes, four a word: int32 [entries · width / 4]; a zero without one. Captured
    graphs read it where it lies, so none is ever forgotten."""
    if name not in ("IQ2_XXS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        return torch.zeros(1, dtype=torch.int32, device=device)
    grid = getattr(codebooks, name)
    codes = np.searchsorted(np.unique(grid), grid).astype(np.uint8)
    return torch.from_numpy(codes.reshape(-1, 4).view("<i4").reshape(-1).copy()).to(device)


def repack_into(kind: BlockType, raw: torch.Tensor, out: torch.Tensor) -> None:
    """Matrices raw uint8 [n, rows, row bytes], which may lie apart, to planes out [n, bytes of a matrix], too."""
    count, rows, row_bytes = raw.shape
    layout, columns = LAYOUTS[kind.name], row_bytes // kind.bytes * kind.weights
    if kind.name not in TYPES or columns % 32:
        repack(kind, raw, out)
        return
    assert raw.stride(1) == row_bytes and raw.stride(2) == out.stride(1) == 1
    blocks = rows * columns // 32
    assert (columns // 32) % layout.every == 0 and out.data_ptr() % 4 == out.stride(0) % 4 == 0
    repack_kernel[(triton.cdiv(blocks, BLOCKS), count)](
        raw, raw.stride(0), out, out.stride(0), grid_of(kind.name, raw.device), blocks, **form_of(kind), num_warps=4
    )
