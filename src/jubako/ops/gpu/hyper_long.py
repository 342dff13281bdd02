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

from .activation import joined
from .fixed import add_block, column_codes, fetch_blocks, hold, of_column, parts_of_codes, put
from .integer import fma
from .plain import numbers_at
from .target import release, target, wait

if TYPE_CHECKING:
    from .hyper import HyperMix

REST = 8  # values of a part behind its rows: the sum of squares, then those of up to seven rows more


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
def rows_of_part(
    streams, gamma, output, inject, down, down_scale, rank, partial, stride, tile, part, token, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, TILES: tl.constexpr,
    COLUMNS: tl.constexpr, PENDING: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
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
    own = (first * 32 + t * 8)[:, :, :, None] + (g * 0)[:, :, :, None] + tl.arange(0, 4)
    factors = ()
    for i in tl.static_range(BLOCKS):
        factors = factors + ((tl.load(gamma + own + i * 32), tl.load(gamma + own + (i * 32 + 4))),)
    wait(OVERLAP)
    owner = tl.minimum(token + tl.minimum(g // 2, COLUMNS - 1), tokens - 1)[:, :, :, None]
    line = owner * STREAMS + stream
    h = own - stream * hidden
    numbers = ()
    for i in tl.static_range(BLOCKS):
        near = fetch_fresh(streams, output, line, hidden, owner, h + i * 32, PENDING)
        far = fetch_fresh(streams, output, line, hidden, owner, h + (i * 32 + 4), PENDING)
        numbers = numbers + ((near, far),)
    strength = tl.load(inject + line) if PENDING else 0.0
    hold(tokens, FORM)
    magic, select = parts_of_codes(g)
    zero = tl.zeros([4, 8, WARPS], tl.float32)
    sums = ()
    for _ in tl.static_range(TILES):
        sums = sums + ((zero, zero),)
    for i in tl.static_range(BLOCKS):
        near = fresh(numbers[i][0], strength, PENDING, FORM) * factors[i][0]
        far = fresh(numbers[i][1], strength, PENDING, FORM) * factors[i][1]
        x, scale = column_codes(near, far, magic, select, FORM)
        d = of_column(scale, t, FORM)
        after = ()
        for r in tl.static_range(TILES):
            after = after + (add_block(sums[r], raws[r][i], x, d, FORM),)
        sums = after
    row = tl.arange(0, 8)[None, :, None] + tl.arange(0, 2)[None, None, :] * 8
    c = tl.arange(0, 4)[:, None, None]
    at = partial + (part * tokens + token + c) * stride + row
    for r in tl.static_range(TILES):
        top = (tile * TILES + r) * 16
        y = tl.sum(tl.join(sums[r][0], sums[r][1]), axis=2)
        there = (top + row < rank) & (c < COLUMNS) & (token + c < tokens)
        if SCALED:
            y *= tl.load(down_scale + tl.minimum(top + row, rank - 1))
        put(at + top, y, there, FORM)


@triton.jit
def rest_of_part(
    streams, gamma, output, inject, add, partial, stride, add_at, part, token, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
    PENDING: tl.constexpr, ADD: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A token's sum of squares over a part, and the products of the rows of `add`."""
    stream = part // PARTS
    k = part * SIZE + tl.arange(0, STEP)
    weights = ()
    factors = ()
    for i in tl.static_range(SIZE // STEP):
        factors = factors + (tl.load(gamma + (k + i * STEP)),)
        for row in tl.static_range(STREAMS if ADD >= 0 else 0):
            weights = weights + (numbers_at(add, row * STREAMS * hidden + k + i * STEP, ADD),)
    wait(OVERLAP)
    line = token * STREAMS + stream
    raws = ()
    for i in tl.static_range(SIZE // STEP):
        h = k - stream * hidden + i * STEP
        raws = raws + (fetch_fresh(streams, output, line, hidden, token, h, PENDING),)
    strength = tl.load(inject + line) if PENDING else 0.0
    hold(tokens, FORM)
    zero = tl.zeros([STEP], tl.float32)
    sums = ()
    for _ in tl.static_range(8):
        sums = sums + (zero,)
    for i in tl.static_range(SIZE // STEP):
        x = fresh(raws[i], strength, PENDING, FORM)
        y = x * factors[i]
        after = (fma(x, x, sums[0], FORM),)
        for row in tl.static_range(STREAMS if ADD >= 0 else 0):
            after = after + (fma(weights[i * STREAMS + row], y, sums[1 + row], FORM),)
        for _ in tl.static_range(7 - (STREAMS if ADD >= 0 else 0)):
            after = after + (zero,)
        sums = after
    total = tl.sum(tl.reshape(joined(sums), [STEP, 8]), axis=0)
    tl.store(partial + (part * tokens + token) * stride + add_at + tl.arange(0, 8), total)


@triton.jit
def long_part_kernel(
    streams, gamma, output, inject, down, down_scale, rank, add, partial, stride, add_at, tiles, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr, TILES: tl.constexpr,
    COLUMNS: tl.constexpr, PENDING: tl.constexpr, ADD: tl.constexpr, STEP: tl.constexpr,
    SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (i, part, c): 16·TILES rows of COLUMNS tokens over a part of a stream, PARTS a stream, into partial
    [parts, T, stride]; from i = tiles on, a token's: its sum of squares and the rows of `add`, to add_at on.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    part = tl.program_id(1)
    token = tl.program_id(2) * COLUMNS
    if tile < tiles:
        rows_of_part(
            streams, gamma, output, inject, down, down_scale, rank, partial, stride, tile, part, token, tokens, hidden,
            STREAMS, PARTS, BLOCKS, WARPS, TILES, COLUMNS, PENDING, SCALED, FORM, OVERLAP,
        )  # fmt: skip
    else:
        rest_of_part(
            streams, gamma, output, inject, add, partial, stride, add_at, part,
            tl.minimum(token + tile - tiles, tokens - 1), tokens, hidden,
            STREAMS, PARTS, BLOCKS * WARPS * 32, STEP, PENDING, ADD, FORM, OVERLAP,
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


def cut_for(hidden: int) -> Cut:
    """The widest cut that divides a stream."""
    for blocks in (5, 4, 2, 1):
        for warps in (8, 4, 2, 1):
            if hidden % (warps * blocks * 32) == 0:
                return Cut(warps, blocks)
    raise AssertionError(f"hidden size {hidden} is not a multiple of 32")


def long_parts(
    streams: torch.Tensor, mix: HyperMix, inject: torch.Tensor | None, output: torch.Tensor | None, columns: int,
    cut: Cut,
) -> torch.Tensor:  # fmt: skip
    """What the gates start from: float32 [parts, T, rows in whole tiles + REST], of the streams [T, S, H] with `output`
    [T, H] added by inject [T, S]; which are left as they are."""
    tokens, count, hidden = streams.shape
    to, rank, add, per = target(streams.device), mix.down.rows, mix.inject, hidden // cut.size
    at = -(-rank // 16) * 16
    parts = torch.empty(count * per, tokens, at + REST, device=streams.device)
    tiles = -(-rank // (16 * cut.tiles))
    long_part_kernel[(tiles + columns, count * per, -(-tokens // columns))](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject,
        mix.down.data, mix.down.scale_or_data, rank, mix.down.data if add is None else add.data,
        parts, parts.stride(1), at, tiles, tokens, hidden,
        STREAMS=count, PARTS=per, BLOCKS=cut.blocks, WARPS=cut.warps, TILES=cut.tiles, COLUMNS=columns,
        PENDING=output is not None, ADD=-1 if add is None else add.type.id, STEP=min(cut.size & -cut.size, 1024),
        SCALED=mix.down.scale is not None, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.warps, **to.options,
    )  # fmt: skip
    return parts
