"""A hyper-connection's long product by tensor cores, in parts: a program takes a part of one stream and some rows.

It reads the streams themselves, with what a block has given since, and leaves sums over its part; scaling by the root
mean square, adding up parts and what comes after are the gates' (hyper_gates.py), which also keep the new streams.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .fixed import add_block, fetch_blocks, hold, pack, parts_of_codes, put, quick_inverse
from .integer import fma
from .plain import numbers_at
from .room import added, elsewhere, found, found_two, leave, leave_bytes, own_room
from .target import release, target, wait
from .tensor import words_of

if TYPE_CHECKING:
    from .hyper import HyperMix

REST = tl.constexpr(16)  # values of a part behind its rows: the sum of squares, those of up to seven rows more, a gap


@triton.jit
def fetch_fresh(streams, output, line, hidden, token, h, PENDING: tl.constexpr):
    """Elements h of a stream, and of what a block gave [T, H] if that is PENDING, on their way."""
    x = tl.load(streams + line * hidden + h)
    return (x, tl.load(output + token * hidden + h)) if PENDING else (x, x)


@triton.jit
def fresh(raw, strength, PENDING: tl.constexpr, FORM: tl.constexpr):
    """A stream's elements with a block's output."""
    return fma(tl.broadcast_to(strength, raw[1].shape), raw[1], raw[0], FORM) if PENDING else raw[0]


@triton.jit
def leave_block(
    x, room, i, SCALES: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """Blocks x float32 [(warp, column), 32], the i-th of each warp, as codes: bytes [i, warp, column, low or high, 32];
    behind SCALES words a scale [i, warp, column]."""
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1).to(tl.float32, bitcast=True)[:, None]
    block = i * WARPS * COLUMNS + tl.arange(0, WARPS * COLUMNS)[:, None]
    k = tl.arange(0, 32)[None, :]
    leave(room, SCALES + block + k * 0, (largest + k * 0.0) * (1.0 / 32385.0), (k == 0) & (block >= 0), FORM)
    inverse = quick_inverse(largest + k * 0.0, FORM)
    if COLUMNS == 4 and FORM == 4:  # a lane has four neighbours
        four = words_of(tl.reshape(x, [1, WARPS * COLUMNS, 8, 4]))
        every = words_of(tl.reshape(inverse, [1, WARPS * COLUMNS, 8, 4]))[0]
        m = tl.arange(0, 8)[None, None, :]
        at = block[None, :, :] * 16 + m
        for part in tl.static_range(2):
            magic, select = parts_of_codes(m * 0 + part)
            leave(room, at + part * 8, pack(four, every, magic, select, FORM), at >= 0, FORM)
    else:
        at = block * 64 + k
        leave_bytes(room, at, fma(x, inverse, 12582912.0 + 0.0 * x, FORM).to(tl.int32, bitcast=True), FORM)
        leave_bytes(room, at + 32, fma(x, inverse, 12583040.0 + 0.0 * x, FORM).to(tl.int32, bitcast=True) >> 8, FORM)


@triton.jit
def rows_of_part(
    streams, gamma, output, inject, down, down_scale, rank, partial, room, tile, part, token, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr,
    TILES: tl.constexpr, COLUMNS: tl.constexpr, PENDING: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """16·TILES rows over a part of a stream, for COLUMNS tokens."""
    stream = part // PARTS
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8
    w = tl.arange(0, WARPS)[None, None, :]
    first = (part * WARPS + w) * BLOCKS
    raws = ()
    for r in tl.static_range(TILES):
        top = tl.minimum((tile * TILES + r) * 16, tl.cdiv(rank, 16) * 16 - 16)
        raws = raws + (fetch_blocks(down, rank, STREAMS * hidden // 64, top, first, t, g, BLOCKS),)
    n = tl.arange(0, WARPS * COLUMNS)[:, None]
    k = (part * WARPS + n // COLUMNS) * (BLOCKS * 32) + tl.arange(0, 32)[None, :]
    owner = tl.minimum(token + n % COLUMNS, tokens - 1)
    factors = ()
    for i in tl.static_range(BLOCKS):
        factors = factors + (tl.load(gamma + k + i * 32),)
    wait(OVERLAP)
    line = owner * STREAMS + stream
    numbers = ()
    for i in tl.static_range(BLOCKS):
        numbers = numbers + (fetch_fresh(streams, output, line, hidden, owner, k - stream * hidden + i * 32, PENDING),)
    strengths = ()  # numbers, which have no order of lanes of their own
    for c in tl.static_range(COLUMNS if PENDING else 0):
        strengths = strengths + (tl.load(inject + tl.minimum(token + c, tokens - 1) * STREAMS + stream),)
    hold(tokens, FORM)
    strength = n * 0.0
    for c in tl.static_range(len(strengths)):
        strength = tl.where(n % COLUMNS == c, strengths[c], strength)
    SCALES: tl.constexpr = BLOCKS * WARPS * COLUMNS * 16  # where they begin
    SUMS: tl.constexpr = BLOCKS * WARPS * COLUMNS * 17
    for i in tl.static_range(BLOCKS):
        x = fresh(numbers[i], strength, PENDING, FORM) * factors[i]
        leave_block(x, room, i, SCALES, BLOCKS, WARPS, COLUMNS, FORM)
    tl.debug_barrier()
    zero = tl.zeros([4, 8, WARPS], tl.float32)
    sums = ()
    for _ in tl.static_range(TILES):
        sums = sums + ((zero, zero),)
    for i in tl.static_range(BLOCKS):
        mine = (i * WARPS + w) * COLUMNS
        x = found_two(room, (mine + tl.minimum(g // 2, COLUMNS - 1)) * 16 + g % 2 * 8 + t * 2, FORM)
        d = found(room, SCALES + mine + tl.minimum(t, COLUMNS - 1) + g * 0, FORM)
        after = ()
        for r in tl.static_range(TILES):
            after = after + (add_block(sums[r], raws[r][i], x, d, FORM),)
        sums = after
    ROWS: tl.constexpr = 16 * TILES
    WIDE: tl.constexpr = ROWS + 8  # a column's, so that lanes of four columns meet no bank twice
    for r in tl.static_range(TILES):
        at = SUMS + (w * COLUMNS + t) * WIDE + (r * 16 + g)
        leave(room, at, sums[r][0], (t < COLUMNS) & (at >= 0), FORM)
        leave(room, at + 8, sums[r][1], (t < COLUMNS) & (at >= 0), FORM)
    tl.debug_barrier()
    c = tl.arange(0, COLUMNS)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    each = ()
    for i in tl.static_range(WARPS):
        each = each + (found(room, SUMS + (i * COLUMNS + c) * WIDE + row, FORM),)
    y = added(each)
    top = tile * ROWS
    if SCALED:
        y *= tl.load(down_scale + tl.minimum(top + row, rank - 1))
    there = (top + row < rank) & (token + c < tokens)
    put(partial + (((token + c) * (STREAMS * PARTS) + part) * STRIDE + (top + row)), y, there, FORM)


@triton.jit
def rest_of_part(
    streams, gamma, output, inject, add, partial, room, part, token, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr,
    PENDING: tl.constexpr, ADD: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A token's sum of squares over a part, and the products of the rows of `add`."""
    stream = part // PARTS
    w = tl.arange(0, WARPS)[:, None]
    k = (part * WARPS + w) * (BLOCKS * 32) + tl.arange(0, 32)[None, :]
    weights = ()
    factors = ()
    for i in tl.static_range(BLOCKS):
        factors = factors + (tl.load(gamma + k + i * 32),)
        for row in tl.static_range(STREAMS if ADD >= 0 else 0):
            weights = weights + (numbers_at(add, row * STREAMS * hidden + k + i * 32, ADD),)
    wait(OVERLAP)
    line = token * STREAMS + stream
    raws = ()
    for i in tl.static_range(BLOCKS):
        raws = raws + (fetch_fresh(streams, output, line, hidden, token, k - stream * hidden + i * 32, PENDING),)
    strength = tl.load(inject + line) if PENDING else 0.0
    hold(tokens, FORM)
    zero = tl.zeros([WARPS, 32], tl.float32)
    sums = ()
    for _ in tl.static_range(8):
        sums = sums + (zero,)
    for i in tl.static_range(BLOCKS):
        x = fresh(raws[i], strength, PENDING, FORM)
        y = x * factors[i]
        after = (fma(x, x, sums[0], FORM),)
        for row in tl.static_range(STREAMS if ADD >= 0 else 0):
            after = after + (fma(weights[i * STREAMS + row], y, sums[1 + row], FORM),)
        for _ in tl.static_range(7 - (STREAMS if ADD >= 0 else 0)):
            after = after + (zero,)
        sums = after
    for j in tl.static_range(1 + (STREAMS if ADD >= 0 else 0)):
        total = tl.sum(sums[j], axis=1)
        at = tl.arange(0, WARPS) * 8 + j
        leave(room, at, total, at >= 0, FORM)
    tl.debug_barrier()
    j = tl.arange(0, 8)
    each = ()
    for i in tl.static_range(WARPS):
        each = each + (found(room, i * 8 + j, FORM),)
    y = tl.where(j < 1 + (STREAMS if ADD >= 0 else 0), added(each), 0.0)
    tl.store(partial + (token * (STREAMS * PARTS) + part) * STRIDE + (STRIDE - REST) + j, y)


@triton.jit
def long_part_kernel(
    streams, gamma, output, inject, down, down_scale, rank, add, partial, outside, tiles, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr,
    TILES: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr, PENDING: tl.constexpr, ADD: tl.constexpr,
    SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (i, part, c): 16·TILES rows of COLUMNS tokens over a part of a stream, PARTS a stream, into partial
    [T, parts, STRIDE]; from i = tiles on, a token's: its sum of squares and the rows of `add`, behind the rows.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    part = tl.program_id(1)
    token = tl.program_id(2) * COLUMNS
    room = own_room(outside, tokens * 0, WORDS, FORM)
    if tile < tiles:
        rows_of_part(
            streams, gamma, output, inject, down, down_scale, rank, partial, room, tile, part, token,
            tokens, hidden, STREAMS, PARTS, STRIDE, BLOCKS, WARPS, TILES, COLUMNS, PENDING, SCALED, FORM, OVERLAP,
        )  # fmt: skip
    else:
        rest_of_part(
            streams, gamma, output, inject, add, partial, room, part,
            tl.minimum(token + tile - tiles, tokens - 1), tokens, hidden,
            STREAMS, PARTS, STRIDE, BLOCKS, WARPS, PENDING, ADD, FORM, OVERLAP,
        )  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """Of a program: warps, side by side along a row, blocks of 32 that each of them reads, tiles of sixteen rows."""

    warps: int = 8
    blocks: int = 5
    tiles: int = 2

    @property
    def size(self) -> int:
        """Numbers of a stream that a program reads."""
        return self.warps * self.blocks * 32

    def words(self, columns: int) -> int:
        """Of a program's room."""
        return self.warps * columns * (self.blocks * 17 + 16 * self.tiles + 8)


def cut_for(mix: HyperMix, columns: int) -> Cut:
    """The widest cut that divides a stream; a single column's programs are half as wide, and add up in the same order
    unless sums have factors of their own."""
    widest = 4 if columns == 1 and mix.down.scale is None else 8
    for blocks in (5, 4, 2, 1):
        for warps in (8, 4, 2, 1):
            if mix.hidden % (warps * blocks * 32) == 0:
                return Cut(min(warps, widest), blocks)
    raise AssertionError(f"hidden size {mix.hidden} is not a multiple of 32")


def long_parts(
    streams: torch.Tensor, mix: HyperMix, inject: torch.Tensor | None, output: torch.Tensor | None, columns: int,
    cut: Cut,
) -> torch.Tensor:  # fmt: skip
    """What the gates start from: float32 [T, parts, rows in whole tiles + REST], of the streams [T, S, H] with `output`
    [T, H] added by inject [T, S]; which are left as they are."""
    tokens, count, hidden = streams.shape
    to, rank, add, per = target(streams.device), mix.down.rows, mix.inject, hidden // cut.size
    at = -(-rank // 16) * 16
    parts = torch.empty(tokens, count * per, at + REST.value, device=streams.device)
    words = cut.words(columns)
    tiles = -(-rank // (16 * cut.tiles))
    long_part_kernel[(tiles + columns, count * per, -(-tokens // columns))](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject,
        mix.down.data, mix.down.scale_or_data, rank, mix.down.data if add is None else add.data,
        parts, elsewhere(to, 1, words, streams.device), tiles, tokens, hidden,
        STREAMS=count, PARTS=per, STRIDE=at + REST.value, BLOCKS=cut.blocks, WARPS=cut.warps, TILES=cut.tiles,
        COLUMNS=columns, WORDS=words, PENDING=output is not None, ADD=-1 if add is None else add.type.id,
        SCALED=mix.down.scale is not None, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.warps, **to.options,
    )  # fmt: skip
    return parts
