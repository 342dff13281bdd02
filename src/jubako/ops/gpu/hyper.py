"""Hyper-connections: with matrices in tiles by hyper_long.py and hyper_gates.py; else, on cards without tensor cores
and for other types, here: norms and quantising, the long thin product in pieces, the wide one with the gates.

Scaling by the root mean square comes after the first product: streams are quantised times gamma alone, while the sums
of squares add up. A block's scale takes the factor exactly where the products of its stream are added.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, stack, store_each
from .combine import Pending, Wide, prepared
from .experts import Beside, Experts, Parts, Routed, add_up, parts_of, summed
from .hyper_gates import tile_mix
from .hyper_prompt import mix_prompt, settle
from .hyper_rank import quick_sigmoid
from .kinds import number_bytes, plain_type
from .launch import COLUMNS
from .linear import Input, linear
from .matrix import Matrix
from .products import fetch_units, lane_rows, meet, meet_groups, nothing, tree
from .prompt import Halves
from .target import release, target, wait
from .tiles import is_tiled


@dataclass(frozen=True, slots=True, eq=False)
class HyperMix:
    """A mixer's weights. norm float32 [S·H]; down [rank, S·H], up [S·H, rank], inject [S, S·H] or None."""

    norm: torch.Tensor
    down: Matrix
    up: Matrix
    inject: Matrix | None
    streams: int
    eps: float

    @property
    def hidden(self) -> int:
        return int(self.norm.shape[0]) // self.streams


@triton.jit
def long_rows(
    base, row_scale, rows, blocks, top, x, squares, inverse, token, tokens, hidden, eps,
    PARTS: tl.constexpr, PLACES: tl.constexpr, PIECES: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr,
    STREAMS: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    FIRST: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `top` on times the normed streams / STREAMS, for COLUMNS tokens: a tuple of float32 [ROWS].

    PIECES pieces of EACH units of every row are read side by side. FIRST: the streams' factors go to inverse [T, S].
    """
    lane = lane_rows(ROWS * PIECES)
    first = lane // ROWS * EACH
    raws = fetch_units(base, rows, blocks, tl.minimum(top + lane % ROWS, rows - 1), first, EACH, TYPE, EVEN)
    wait(OVERLAP)
    n = tl.arange(0, ROWS * PIECES)
    stream = n // ROWS * STREAMS // PIECES
    part = tl.arange(0, PLACES)[None, :]
    factors = ()
    for c in tl.static_range(COLUMNS):
        line = (tl.minimum(token + c, tokens - 1) * STREAMS + stream)[:, None]
        each = tl.load(squares + line * PARTS + part, mask=part < PARTS, other=0.0)
        factor = tl.rsqrt(tl.sum(each, axis=1) / hidden + eps)
        factors = factors + (factor,)
        if FIRST:
            if top == 0:
                tl.store(inverse + (token + c) * STREAMS + stream, factor, mask=token + c + 0 * n < tokens)
    sums = nothing(COLUMNS, ROWS * PIECES, TYPE)
    sums = meet(sums, raws, x, token, tokens - 1, first, EACH, COLUMNS, TYPE, True, EVEN, FORM)
    totals = ()
    for c in tl.static_range(COLUMNS):
        y = tl.sum(tl.reshape(tree(sums[c], ROWS * PIECES) * factors[c], [PIECES, ROWS]), axis=0) * (1.0 / STREAMS)
        if SCALED:
            y *= tl.load(row_scale + tl.minimum(top + tl.arange(0, ROWS), rows - 1))
        totals = totals + (y,)
    return totals


@triton.jit
def long_kernel(
    down, down_scale, rank, add, add_scale, add_rows, blocks, q, d, s, numbers, x_blocks, x_valid, squares,
    low, stride, inverse, inject, tiles, tokens, hidden, eps,
    PARTS: tl.constexpr, PLACES: tl.constexpr, UNITS: tl.constexpr, STREAMS: tl.constexpr, COLUMNS: tl.constexpr,
    DOWN: tl.constexpr, DOWN_SCALED: tl.constexpr, ADD: tl.constexpr, ADD_ROWS: tl.constexpr, PIECES: tl.constexpr,
    ADD_SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): eight low-rank values of COLUMNS tokens into low [T, stride].

    After `tiles` of them inject [T, S]. UNITS: of a stream. The streams' factors go to inverse [T, S].
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    x = (q, d, s, numbers, x_blocks, x_valid)
    if tile < tiles:
        totals = long_rows(
            down, down_scale, rank, blocks, tile * 8, x, squares, inverse, token, tokens, hidden, eps, PARTS,
            PLACES, STREAMS, UNITS, 8, STREAMS, COLUMNS, DOWN, True, DOWN_SCALED, True, FORM, OVERLAP,
        )  # fmt: skip
        of_row = tile * 8 + tl.arange(0, 8)
        for c in tl.static_range(COLUMNS):
            y = totals[c] * quick_sigmoid(totals[c], FORM)
            tl.store(low + (token + c) * stride + of_row, y, mask=(of_row < rank) & (token + c < tokens))
    elif ADD >= 0:
        weights = long_rows(
            add, add_scale, add_rows, blocks, 0, x, squares, inverse, token, tokens, hidden, eps, PARTS, PLACES,
            PIECES, UNITS * STREAMS // PIECES, ADD_ROWS, STREAMS, COLUMNS, ADD, True, ADD_SCALED, False, FORM,
            OVERLAP,
        )  # fmt: skip
        of = tl.arange(0, ADD_ROWS)
        for c in tl.static_range(COLUMNS):
            there = (of < add_rows) & (token + c < tokens)
            tl.store(inject + (token + c) * add_rows + of, 2.0 * quick_sigmoid(weights[c], FORM), mask=there)


@triton.jit
def gate_kernel(
    streams, gamma, low, stride, inverse, up, up_scale, low_q, low_d, low_s, low_x, low_blocks, low_valid,
    q, d, s, numbers, blocks, hidden, rank, tokens,
    STREAMS: tl.constexpr, LOW_BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, UNITS: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr, SCALED: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): the mixed hidden values of 32 elements of COLUMNS tokens, quantised.

    low [T, stride]: rank values a token. low_…: a `Quantised` with COLUMNS tokens for every program, for its own use.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    pair = tl.arange(0, 64)  # the same 32 elements of two streams
    PAIRS: tl.constexpr = STREAMS // 2
    raws = ()
    gammas = ()
    for g in tl.static_range(PAIRS):
        lane = lane_rows(64)
        row = (2 * g + lane // 32) * hidden + tile * 32 + lane % 32
        raws = raws + (fetch_units(up, STREAMS * hidden, tl.cdiv(rank, 32), row, 0, UNITS, TYPE, EVEN),)
        gammas = gammas + (tl.load(gamma + (2 * g + pair // 32) * hidden + tile * 32 + pair % 32),)
    wait(OVERLAP)
    n = tl.arange(0, COLUMNS * LOW_BLOCKS)
    place = n % LOW_BLOCKS
    r = place[:, None] * 32 + tl.arange(0, 32)[None, :]
    owner = tl.minimum(token + n // LOW_BLOCKS, tokens - 1)
    values = tl.load(low + owner[:, None] * stride + r, mask=r < rank, other=0.0)
    normed = ()
    for c in tl.static_range(COLUMNS):
        line = tl.minimum(token + c, tokens - 1) * STREAMS + pair // 32
        for g in tl.static_range(PAIRS):
            value = tl.load(streams + (line + 2 * g) * hidden + tile * 32 + pair % 32)
            normed = normed + (value * tl.load(inverse + line + 2 * g) * gammas[g],)
    mine = (tl.program_id(1) * tl.num_programs(0) + tile) * COLUMNS
    store_each(
        values, mine + n // LOW_BLOCKS, place, place >= 0, low_blocks, low_q, low_d, low_s, low_x, True,
        number_bytes(TYPE) > 0,
    )  # fmt: skip
    tl.debug_barrier()
    x = (low_q, low_d, low_s, low_x, low_blocks, low_valid)
    sums = nothing(COLUMNS * PAIRS, 64, TYPE)
    sums = meet_groups(sums, raws, x, mine, mine + COLUMNS - 1, 0, UNITS, COLUMNS, PAIRS, TYPE, True, EVEN, FORM)
    mixed = ()
    for c in tl.static_range(COLUMNS):
        total = tl.zeros([64], tl.float32)
        for g in tl.static_range(PAIRS):
            y = tree(sums[c * PAIRS + g], 64)
            if SCALED:
                y *= tl.load(up_scale)
            total += quick_sigmoid(y, FORM) * normed[c * PAIRS + g]
        mixed = mixed + (total,)
    both = tl.sum(tl.reshape(stack(mixed, 64), [COLUMNS, 2, 32]), axis=1) * (1.0 / STREAMS)
    c = tl.arange(0, COLUMNS)
    store_each(both, token + c, tile + 0 * c, token + c < tokens, blocks, q, d, s, numbers, FINE, True)


@dataclass(frozen=True)
class Cut:
    """Columns of a program of the long product and of the gates, and warps of the latter."""

    long: int = 2
    gate: int = 4
    warps: int = 8


def hyper_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool = True, pending: Pending | None = None, cut: Cut | None = None
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """What a block reads of streams [T, S, H], quantised (finely or as experts do), and inject [T, S] or None.

    pending is added to the streams first, in place.
    """
    if streams.shape[0] <= COLUMNS:
        if not lies_in_tiles(mix):
            return mix_step(streams, mix, prepared(streams, mix.norm, pending), fine, cut)
        if pending is None:
            return tile_mix(streams, mix, fine)
        return tile_mix(streams, mix, fine, pending.inject, summed(pending.output))
    if pending is not None and isinstance(pending.output, Parts):  # of a card without tensor cores
        add_up(pending.output, streams, pending.inject)
        pending = None
    if pending is None:
        normed = settle(streams, None, None, mix.norm, mix.eps)
    else:
        assert not isinstance(pending.output, Parts)
        normed = settle(streams, pending.inject, pending.output, mix.norm, mix.eps)
    pending = None  # what experts gave is large, and not needed any more
    return mix_prompt(normed, mix.streams, mix.down, mix.up, mix.inject)


def lies_in_tiles(mix: HyperMix) -> bool:
    """Whether tensor cores take both matrices as they lie; the rows of inject are plain numbers then."""
    add = mix.inject
    return (
        is_tiled(mix.down.type)
        and is_tiled(mix.up.type)
        and mix.streams in (2, 4)
        and (add is None or (plain_type(add.type.id) and add.scale is None))
    )


def mix_step(
    streams: torch.Tensor, mix: HyperMix, wide: Wide, fine: bool, cut: Cut | None = None
) -> tuple[Quantised, torch.Tensor | None]:
    """`hyper_mix` of up to 16 tokens, of streams as they are, where matrices do not lie in tiles."""
    tokens, count, hidden = streams.shape
    device, to, rank = streams.device, target(streams.device), mix.down.rows
    cut = cut or (Cut() if to.shares else Cut(1, 1))
    assert hidden % 256 == 0, f"hidden size {hidden} is not a multiple of 256"
    assert count % 2 == 0, f"{count} streams are not pairs"
    low = torch.empty(tokens, -(-rank // 32) * 32, device=device)
    inverse = torch.empty(tokens, count, device=device)
    inject = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    long_product(mix, wide, low, inverse, inject, min(cut.long, triton.next_power_of_2(tokens)))
    mixed = room_for(tokens, hidden, fine, device)
    columns = min(triton.next_power_of_2(tokens), cut.gate)
    tiles, groups = hidden // 32, -(-tokens // columns)
    own = room_for(groups * tiles * columns, rank, True, device)
    gate_kernel[(tiles, groups)](
        streams, mix.norm, low, low.stride(0), inverse, mix.up.data, mix.up.scale_or_data,
        own.q, own.d, own.s, own.x, own.blocks, own.valid, mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks,
        hidden, rank, tokens,
        STREAMS=count, LOW_BLOCKS=triton.next_power_of_2(-(-rank // 32)), COLUMNS=columns,
        UNITS=-(-mix.up.blocks // 8), TYPE=mix.up.type.id, EVEN=mix.up.blocks % 8 == 0, SCALED=mix.up.scale is not None,
        FINE=fine, FORM=to.form_of(columns), OVERLAP=to.overlap, num_warps=cut.warps, **to.options,
    )  # fmt: skip
    return mixed, inject


def long_product(
    mix: HyperMix, wide: Wide, low: torch.Tensor, inverse: torch.Tensor, inject: torch.Tensor | None, columns: int
) -> None:
    """The low-rank values of wide streams, their factors 1 / root mean square, and inject, if there is one."""
    tokens, to, x = low.shape[0], target(low.device), wide.streams
    parts, units = wide.squares.shape[1] // mix.streams, mix.hidden // 256
    add = mix.inject
    of_numbers = add is not None and plain_type(add.type.id)
    tiles = -(-mix.down.rows // 8)
    long_kernel[(tiles + (0 if add is None else 1), -(-tokens // columns))](
        mix.down.data, mix.down.scale_or_data, mix.down.rows,
        *((mix.down.data, mix.down.data, 0) if add is None else (add.data, add.scale_or_data, add.rows)),
        mix.down.blocks, x.q, x.d, x.s, x.x, x.blocks, x.valid, wide.squares, low, low.stride(0), inverse,
        inverse if inject is None else inject, tiles, tokens, mix.hidden, mix.eps,
        PARTS=parts, PLACES=triton.next_power_of_2(parts), UNITS=units, STREAMS=mix.streams, COLUMNS=columns,
        DOWN=mix.down.type.id, DOWN_SCALED=mix.down.scale is not None, ADD=-1 if add is None else add.type.id,
        ADD_ROWS=4 if of_numbers else 8, PIECES=mix.streams * (2 if of_numbers and units % 2 == 0 else 1),
        ADD_SCALED=add is not None and add.scale is not None, FORM=to.form_of(columns), OVERLAP=to.overlap,
        num_warps=2 * mix.streams, **to.options,
    )  # fmt: skip


def linear_mix(
    weight: Matrix,
    y: Input,
    streams: torch.Tensor,
    inject: torch.Tensor,
    mix: HyperMix,
    fine: bool = True,
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """Add y [T, K] times weight to the streams, weighted by inject [T, S], in place; then `hyper_mix`."""
    return hyper_mix(streams, mix, fine, Pending(inject, linear(weight, y)))


def experts_mix(
    layer: Experts,
    x: Input,
    routed: Routed,
    streams: torch.Tensor,
    inject: torch.Tensor,
    mix: HyperMix,
    fine: bool = True,
    beside: Beside | None = None,
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """Add the experts' output to the streams, weighted by inject [T, S], in place; then `hyper_mix`."""
    return hyper_mix(streams, mix, fine, Pending(inject, parts_of(layer, x, routed, beside=beside)))
