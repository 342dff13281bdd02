"""A hyper-connection's gates by tensor cores: the wide product, from rank values to a gate for each element of each
stream, and the mean over the streams of what the gates let through.

A program makes 32 hidden values of up to four tokens; each adds up the long product's parts (hyper_long.py) for itself.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for
from .fixed import have_made, hold, makes_late
from .fixed_lanes import fetch_lane_factors, lane_products
from .fixed_pairs import add_pair_block, after_block, fetch_codes, fetch_pair_factors, no_sums, whole
from .hand_over import hand_over
from .hyper_long import REST, Cut, cut_for, fetch_fresh, fresh, long_parts
from .hyper_rank import (
    add_parts,
    factor_of,
    fetch_halves,
    fetch_parts,
    fetch_squares,
    leave_halves,
    quick_sigmoid,
    rank_values,
)
from .kinds import minimum_of
from .room import added, elsewhere, found, found_four, leave, own_room
from .target import release, target, wait

if TYPE_CHECKING:
    from .hyper import HyperMix

GROUP = 4  # columns of a program


@triton.jit
def pair_sums(
    codes, factors, room, rank, t, g, w,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, UP: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Products of sixteen rows with COLUMNS columns that `leave_halves` left: of rows and of those eight below."""
    SCALES = COLUMNS * (rank // 2)
    if COLUMNS == 1:
        words, scales, more = (), (), ()
        for i in tl.static_range((2 * PAIRS + 3) // 4):
            j, k = tl.minimum(4 * i + g // 2, 2 * PAIRS - 1), tl.minimum(4 * i + t, 2 * PAIRS - 1)
            words = words + (g % 2 * (rank // 4) + j // 2 * 16 + j % 2 * 2 + t * 4 + w * 0,)
            scales = scales + (SCALES + k + (g + w) * 0,)
            more = more + (SCALES + BLOCKS + k + (g + w) * 0,)
        return lane_products(codes, factors, room, words, scales, more, 2 * PAIRS, UP, FORM)
    else:
        part = tl.minimum(g // 2, COLUMNS - 1) * 2 + g % 2
        words = part * (rank // 4) + t * 4 + w * 0
        place = SCALES + tl.minimum(t, COLUMNS - 1) * BLOCKS + (g + w) * 0
        scales, more = (), ()
        for i in tl.static_range((PAIRS + 1) // 2):
            scales = scales + found_four(room, place + i * 4, FORM)
            if minimum_of(UP) > 0:
                more = more + found_four(room, place + (COLUMNS * BLOCKS + i * 4), FORM)
        four = no_sums(t, g, w)
        for n in tl.static_range(2 * PAIRS):
            if n % 2 == 0:
                x = found_four(room, words + n * 8, FORM)
            own = (x[n % 2 * 2], x[n % 2 * 2 + 1])
            d = scales[n].to(tl.float32, bitcast=True)
            q = more[n].to(tl.float32, bitcast=True) if minimum_of(UP) > 0 else d
            four = after_block(four, n % 4, add_pair_block(four[n % 4], codes[n], factors[n], own, d, q, UP, FORM))
        return whole(four)


@triton.jit
def mix_tile(
    streams, gamma, output, inject, partial, up, up_scale, room, q, d, s, numbers, blocks,
    tile, token, hidden, rank, tokens, share, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr,
    COLUMNS: tl.constexpr, PENDING: tl.constexpr, UP: tl.constexpr, SCALED: tl.constexpr, FINE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """32 mixed hidden values of COLUMNS tokens, quantised; the new streams are kept if there is something PENDING.

    A warp has sixteen elements of one stream. room: `room.own_room`, of the rank values' codes (see `leave_halves`),
    then of what the gates let through.
    """
    BLOCKS: tl.constexpr = (LOW // 32 + 3) // 4 * 4
    SUMMED: tl.constexpr = minimum_of(UP) > 0
    ROUND: tl.constexpr = 4 * STREAMS
    ROUNDS: tl.constexpr = (COLUMNS * (LOW // 32) + ROUND - 1) // ROUND
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8  # so that the compiler sees no runs and leaves t + 4·g to the lanes
    w = tl.arange(0, 2 * STREAMS)[None, None, :]
    stream = w // 2
    element = tile * 32 + w % 2 * 16
    top = stream * hidden + element
    codes = fetch_codes(up, STREAMS * hidden, PAIRS, top, 0, t, g, PAIRS, UP, FORM)
    factors = ()
    if COLUMNS == 1:
        factors = fetch_lane_factors(up, STREAMS * hidden, PAIRS, top, 0, w, PAIRS * 2, UP)
    else:
        for i in tl.static_range(PAIRS):
            factors = factors + fetch_pair_factors(up, STREAMS * hidden, PAIRS, top, i, t, g, UP)
    of = element + g
    near_gamma, far_gamma = tl.load(gamma + (stream * hidden + of)), tl.load(gamma + (stream * hidden + of + 8))
    if not makes_late(COLUMNS, UP):
        have_made(codes, factors, room, hidden, FORM)
    wait(OVERLAP)
    values = ()
    pair = tl.arange(0, ROUND)[None, None, :]
    for i in tl.static_range(ROUNDS):
        own = fetch_halves(partial, token, tokens, pair + i * ROUND, STREAMS, PARTS, STRIDE, LOW // 32, COLUMNS)
        values = values + (own,)
    held = tl.minimum(token + tl.minimum(t, COLUMNS - 1), tokens - 1)
    line = held * STREAMS + stream
    near_raw = fetch_fresh(streams, output, line, hidden, held, of, PENDING)
    far_raw = fetch_fresh(streams, output, line, hidden, held, of + 8, PENDING)
    strength = tl.load(inject + line) if PENDING else 0.0
    own = fetch_squares(partial, held, stream * PARTS, STREAMS * PARTS, PARTS, STRIDE)
    if makes_late(COLUMNS, UP):
        have_made(codes, factors, room, hidden, FORM)
    hold(hidden, FORM)
    factor = factor_of(own, share, eps)
    for i in tl.static_range(ROUNDS):
        low = rank_values(values[i], share, eps, STREAMS, PARTS, FORM)
        leave_halves(low, room, pair + i * ROUND, rank, LOW // 32, COLUMNS, SUMMED, FORM)
    near = fresh(near_raw, strength, PENDING, FORM)
    far = fresh(far_raw, strength, PENDING, FORM)
    if PENDING:
        there = (t < COLUMNS) & (token + t < tokens) & (of >= 0)
        tl.store(streams + line * hidden + of, near, mask=there)
        tl.store(streams + line * hidden + of + 8, far, mask=there)
    near *= factor * near_gamma
    far *= factor * far_gamma
    tl.debug_barrier()
    y, below = pair_sums(codes, factors, room, rank, t, g, w, PAIRS, COLUMNS, BLOCKS, UP, FORM)
    if SCALED:
        scale = tl.load(up_scale)
        y *= scale
        below *= scale
    WIDE: tl.constexpr = STREAMS * 32 + 8  # a column's, so that lanes of four columns meet no bank twice
    later = COLUMNS * (rank // 2 + BLOCKS * (2 if SUMMED else 1))
    at = later + t * WIDE + (w * 16 + g)
    leave(room, at, quick_sigmoid(y, FORM) * near, (t < COLUMNS) & (at >= 0), FORM)
    leave(room, at + 8, quick_sigmoid(below, FORM) * far, (t < COLUMNS) & (at >= 0), FORM)
    tl.debug_barrier()
    column = tl.arange(0, 4)[:, None]
    let = ()
    for n in tl.static_range(STREAMS):
        at = later + tl.minimum(column, COLUMNS - 1) * WIDE + (n * 32 + tl.arange(0, 32)[None, :])
        let = let + (found(room, at, FORM),)
    both = added(let) * (1.0 / STREAMS)
    live = (column < COLUMNS) & (token + column < tokens)
    hand_over(both, token + column, tile, live, blocks, q, d, s, numbers, FINE, FORM)


@triton.jit
def next_inject(
    partial, inject, token, tokens, share, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """How strongly each stream of COLUMNS tokens takes what the block will give, to inject [T, S]."""
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)[:, None]
    s = tl.arange(0, STREAMS)[None, :]
    owner = tl.minimum(token + c, tokens - 1)
    values = fetch_parts(partial, owner, STRIDE - REST + 1 + s, s >= 0, STREAMS * PARTS, STRIDE)
    factors = ()
    for n in tl.static_range(STREAMS):
        squares = fetch_squares(partial, owner, n * PARTS, STREAMS * PARTS, PARTS, STRIDE)
        factors = factors + (factor_of(squares, share, eps),)
    y = 2.0 * quick_sigmoid(add_parts(values, factors, STREAMS, PARTS), FORM)
    tl.store(inject + owner * STREAMS + s, y, mask=token + c < tokens)


@triton.jit
def tile_gate_kernel(
    streams, gamma, output, inject, partial, up, up_scale, outside, given, q, d, s, numbers, blocks,
    tiles, hidden, rank, tokens, share, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr,
    COLUMNS: tl.constexpr, WORDS: tl.constexpr, PENDING: tl.constexpr, UP: tl.constexpr, SCALED: tl.constexpr,
    FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): `mix_tile` of COLUMNS tokens; behind the tiles `next_inject`, to given [T, S]."""
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    if tile < tiles:
        room = own_room(outside, tokens * 0, WORDS, FORM)
        mix_tile(
            streams, gamma, output, inject, partial, up, up_scale, room, q, d, s, numbers, blocks,
            tile, token, hidden, rank, tokens, share, eps, STREAMS, PARTS, STRIDE, PAIRS, LOW, COLUMNS, PENDING, UP,
            SCALED, FINE, FORM, OVERLAP,
        )  # fmt: skip
    else:
        next_inject(partial, given, token, tokens, share, eps, STREAMS, PARTS, STRIDE, COLUMNS, FORM, OVERLAP)


def tile_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool, inject: torch.Tensor | None = None,
    output: torch.Tensor | None = None, cut: Cut | None = None,
) -> tuple[Quantised, torch.Tensor | None]:  # fmt: skip
    """A mix whose matrices lie in tiles: `hyper.hyper_mix` of up to 16 tokens, after `output` [T, H] was added to the
    streams [T, S, H] by inject [T, S], in place, if it is given."""
    tokens, count, hidden = streams.shape
    device, to, rank = streams.device, target(streams.device), mix.down.rows
    columns = min(triton.next_power_of_2(tokens), GROUP)
    cut = cut or cut_for(mix, columns)
    tiles, groups = hidden // 32, -(-tokens // columns)
    parts = long_parts(streams, mix, inject, output, columns, cut)
    mixed = room_for(tokens, hidden, fine, device)
    given = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    low = -(-rank // 32) * 32
    words = columns * (rank // 2 + (low // 32 + 3) // 4 * 8 + count * 32 + 8)
    tile_gate_kernel[(tiles + (0 if given is None else 1), groups)](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject, parts,
        mix.up.data, mix.up.scale_or_data,
        elsewhere(to, 1, words, device), parts if given is None else given,
        mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks, tiles, hidden, rank, tokens, 1.0 / hidden, mix.eps,
        STREAMS=count, PARTS=hidden // cut.size, STRIDE=parts.shape[2], PAIRS=mix.up.blocks // 2, LOW=low,
        COLUMNS=columns, WORDS=words, PENDING=output is not None, UP=mix.up.type.id,
        SCALED=mix.up.scale is not None, FINE=fine, FORM=to.form, OVERLAP=to.overlap, num_warps=2 * count, **to.options,
    )  # fmt: skip
    return mixed, given
