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

from .fixed import have_made, hold, makes_late, put
from .fixed_lanes import fetch_lane_factors, lane_products
from .fixed_pairs import (
    add_pair_block,
    after_block,
    fetch_codes,
    fetch_pair_factors,
    no_sums,
    whole,
)
from .hyper_codes import found_block, leave_block, leave_sums
from .integer import fma
from .kinds import minimum_of, scales_of
from .plain import numbers_at
from .room import added, elsewhere, found, leave, own_room
from .target import release, target, wait
from .tiles import TILED, TILES

if TYPE_CHECKING:
    from .hyper import HyperMix

NARROW = (TILED, TILES["Q6_K"])  # a single column of others is faster in whole programs
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
def own_block(i, w, BLOCKS: tl.constexpr, WARPS: tl.constexpr, TILES: tl.constexpr):
    """Where among a column's codes (hyper_codes.py) the i-th block lies that warp w multiplies."""
    return i % BLOCKS * WARPS + (w // TILES * TILES + i // BLOCKS)


@triton.jit
def rows_of_part(
    streams, gamma, output, inject, down, down_scale, rank, partial, room, tile, part, token, tokens, hidden,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr,
    TILES: tl.constexpr, COLUMNS: tl.constexpr, PENDING: tl.constexpr, DOWN: tl.constexpr, SCALED: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """16·TILES rows over a part of a stream, for COLUMNS tokens. A warp codes BLOCKS blocks, and multiplies TILES times
    as many with one of the tiles."""
    stream = part // PARTS
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8
    w = tl.arange(0, WARPS)[None, None, :]
    HALVED: tl.constexpr = scales_of(DOWN) == 1
    SUMMED: tl.constexpr = minimum_of(DOWN) > 0
    PAIRS: tl.constexpr = BLOCKS * TILES // 2
    PLACES: tl.constexpr = WARPS // TILES  # warps side by side along a row
    first = (part * PLACES + w // TILES) * PAIRS
    top = tl.minimum((tile * TILES + w % TILES) * 16, tl.cdiv(rank, 16) * 16 - 16)
    pairs = STREAMS * hidden // 64
    codes = fetch_codes(down, rank, pairs, top, first, t, g, PAIRS, DOWN, FORM)
    factors = ()
    if COLUMNS == 1:
        factors = fetch_lane_factors(down, rank, pairs, top, first * 2, w, PAIRS * 2, DOWN)
    else:
        for i in tl.static_range(PAIRS):
            factors = factors + fetch_pair_factors(down, rank, pairs, top, first + i, t, g, DOWN)
    n = tl.arange(0, WARPS * COLUMNS)[:, None]
    k = (part * WARPS + n // COLUMNS) * (BLOCKS * 32) + tl.arange(0, 32)[None, :]
    owner = tl.minimum(token + n % COLUMNS, tokens - 1)
    gammas = ()
    for i in tl.static_range(BLOCKS):
        gammas = gammas + (tl.load(gamma + k + i * 32),)
    if not makes_late(COLUMNS, DOWN):
        have_made(codes, factors, room, hidden, FORM)
    wait(OVERLAP)
    line = owner * STREAMS + stream
    numbers = ()
    for i in tl.static_range(BLOCKS):
        numbers = numbers + (fetch_fresh(streams, output, line, hidden, owner, k - stream * hidden + i * 32, PENDING),)
    strengths = ()  # numbers, which have no order of lanes of their own
    for c in tl.static_range(COLUMNS if PENDING else 0):
        strengths = strengths + (tl.load(inject + tl.minimum(token + c, tokens - 1) * STREAMS + stream),)
    if makes_late(COLUMNS, DOWN):
        have_made(codes, factors, room, hidden, FORM)
    hold(hidden, FORM)
    strength = n * 0.0
    for c in tl.static_range(len(strengths)):
        strength = tl.where(n % COLUMNS == c, strengths[c], strength)
    SCALES: tl.constexpr = BLOCKS * WARPS * COLUMNS * 16  # where they begin
    SUMS: tl.constexpr = BLOCKS * WARPS * COLUMNS * (18 if SUMMED else 17)
    for i in tl.static_range(BLOCKS):
        x = fresh(numbers[i], strength, PENDING, FORM) * gammas[i]
        leave_block(x, room, i, SCALES, BLOCKS, WARPS, COLUMNS, HALVED, SUMMED, FORM)
    tl.debug_barrier()
    ROWS: tl.constexpr = 16 * TILES
    WIDE: tl.constexpr = ROWS + 8  # a column's, so that lanes of four columns meet no bank twice
    if COLUMNS == 1:
        words, scales, more = (), (), ()
        for i in tl.static_range((2 * PAIRS + 3) // 4):
            j, k = tl.minimum(4 * i + g // 2, 2 * PAIRS - 1), tl.minimum(4 * i + t, 2 * PAIRS - 1)
            words = words + (own_block(j, w, BLOCKS, WARPS, TILES) * 16 + g % 2 * 8 + t * 2,)
            scales = scales + (SCALES + own_block(k, w, BLOCKS, WARPS, TILES) + g * 0,)
            more = more + (SCALES + BLOCKS * WARPS + own_block(k, w, BLOCKS, WARPS, TILES) + g * 0,)
        sums = lane_products(codes, factors, room, words, scales, more, 2 * PAIRS, DOWN, FORM)
    else:
        four = no_sums(t, g, w)
        for i in tl.static_range(PAIRS * 2):
            mine = own_block(i, w, BLOCKS, WARPS, TILES) * COLUMNS
            x, d, q = found_block(room, mine, t, g, SCALES, BLOCKS * WARPS * COLUMNS if SUMMED else 0, COLUMNS, FORM)
            now = add_pair_block(four[i % 4], codes[i], factors[i], x, d, q, DOWN, FORM)
            four = after_block(four, i % 4, now)
        sums = whole(four)
    leave_sums(sums, room, SUMS + (w // TILES * COLUMNS + t) * WIDE + (w % TILES * 16 + g), t, COLUMNS, FORM)
    tl.debug_barrier()
    c = tl.arange(0, COLUMNS)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    each = ()
    for i in tl.static_range(PLACES):
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
    hold(hidden, FORM)
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
    DOWN: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
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
            tokens, hidden, STREAMS, PARTS, STRIDE, BLOCKS, WARPS, TILES, COLUMNS, PENDING, DOWN, SCALED,
            FORM, OVERLAP,
        )  # fmt: skip
    else:
        rest_of_part(
            streams, gamma, output, inject, add, partial, room, part,
            tl.minimum(token + tile - tiles, tokens - 1), tokens, hidden,
            STREAMS, PARTS, STRIDE, BLOCKS, WARPS, PENDING, ADD, FORM, OVERLAP,
        )  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """Of a program: warps, blocks of 32 that each of them codes, tiles of sixteen rows. A warp multiplies one of these,
    over as many times its blocks."""

    warps: int = 8
    blocks: int = 5
    tiles: int = 2

    @property
    def size(self) -> int:
        """Numbers of a stream that a program reads."""
        return self.warps * self.blocks * 32

    def words(self, columns: int) -> int:
        """Of a program's room."""
        return self.warps * columns * self.blocks * 18 + self.warps // self.tiles * columns * (16 * self.tiles + 8)


def cut_for(mix: HyperMix, columns: int) -> Cut:
    """The widest cut that divides a stream; a single column's programs are half as wide for some types, and add up in
    the same order unless sums have factors of their own."""
    widest = 4 if columns == 1 and mix.down.scale is None and mix.down.type in NARROW else 8
    for blocks in (5, 4, 2, 1):
        for warps in (8, 4, 2, 1):
            tiles = min(warps, 2)
            if mix.hidden % (warps * blocks * 32) == 0 and blocks * tiles % 2 == 0:
                return Cut(min(warps, widest), blocks, tiles)
    raise AssertionError(f"hidden size {mix.hidden} is not a multiple of 64")


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
    assert cut.warps % cut.tiles == 0 and cut.blocks * cut.tiles % 2 == 0, cut
    tiles = -(-rank // (16 * cut.tiles))
    long_part_kernel[(tiles + columns, count * per, -(-tokens // columns))](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject,
        mix.down.data, mix.down.scale_or_data, rank, mix.down.data if add is None else add.data,
        parts, elsewhere(to, 1, words, streams.device), tiles, tokens, hidden,
        STREAMS=count, PARTS=per, STRIDE=at + REST.value, BLOCKS=cut.blocks, WARPS=cut.warps, TILES=cut.tiles,
        COLUMNS=columns, WORDS=words, PENDING=output is not None, ADD=-1 if add is None else add.type.id,
        DOWN=mix.down.type.id, SCALED=mix.down.scale is not None, FORM=to.form, OVERLAP=to.overlap,
        num_warps=cut.warps, **to.options,
    )  # fmt: skip
    return parts
