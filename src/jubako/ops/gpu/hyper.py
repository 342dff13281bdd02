"""Hyper-connections: norms and quantising, the long thin product in pieces, the wide one with the gates.

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
from .combine import Pending, Wide, prepared, product_into
from .experts import Experts, Parts, Routed, add_up, parts_of
from .hyper_prompt import mix_prompt
from .integer import fma
from .kinds import number_bytes
from .launch import COLUMNS
from .linear import Input, Shape, divisor, launch, linear, long, quantised
from .matrix import Matrix
from .products import fetch_units, lane_rows, meet_groups, nothing, tree
from .prompt import Halves
from .target import interpreted, release, target, wait


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
def quick_sigmoid(x):
    """1 / (1 + e^-x) within a few units in the last place; the CPU's bits are not asked for here."""
    return 1.0 / (1.0 + tl.exp(0.0 - x))


@triton.jit
def low_values(
    partial, inverse, token, tokens, rows, STREAMS: tl.constexpr, SPLITS: tl.constexpr, BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """The long product of COLUMNS tokens from `token` on, put together: float32 [COLUMNS·BLOCKS, 32]."""
    n = tl.arange(0, COLUMNS * BLOCKS)[:, None]
    r = n % BLOCKS * 32 + tl.arange(0, 32)[None, :]
    at = partial + tl.minimum(token + n // BLOCKS, tokens - 1) * rows + r
    low = tl.zeros([COLUMNS * BLOCKS, 32], tl.float32)
    for stream in tl.static_range(STREAMS):
        of_stream = tl.zeros([COLUMNS * BLOCKS, 32], tl.float32)
        for i in tl.static_range(SPLITS // STREAMS):
            part = stream * (SPLITS // STREAMS) + i
            of_stream += tl.load(at + part * tokens * rows, mask=r < rows, other=0.0)
        factor = inverse[stream] + tl.zeros_like(low)
        for c in tl.static_range(1, COLUMNS):
            factor = tl.where(n // BLOCKS == c, inverse[c * STREAMS + stream], factor)
        low = fma(factor, of_stream, low, FORM)
    return low


@triton.jit
def gate_kernel(
    streams, gamma, partial, squares, up, up_scale, low_q, low_d, low_s, low_x, low_blocks, low_valid,
    q, d, s, numbers, blocks, inject, hidden, rank, rows, tokens, eps,
    STREAMS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, LOW_BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr, UNITS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    INJECT: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): the mixed hidden values of 32 elements of COLUMNS tokens, quantised; tile 0 writes inject.

    partial [SPLITS, T, rows]: products of rank rows, and of the inject rows, each over a part of one stream.
    low_…: a `Quantised` with COLUMNS tokens for every program, for its own use.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    pair = tl.arange(0, 64)  # the same 32 elements of two streams
    raws = ()
    gammas = ()
    for g in tl.static_range(STREAMS // 2):
        lane = lane_rows(64)
        row = (2 * g + lane // 32) * hidden + tile * 32 + lane % 32
        raws = raws + (fetch_units(up, STREAMS * hidden, tl.cdiv(rank, 32), row, 0, UNITS, TYPE, EVEN),)
        gammas = gammas + (tl.load(gamma + (2 * g + pair // 32) * hidden + tile * 32 + pair % 32),)
    wait(OVERLAP)
    part = tl.arange(0, PLACES)
    inverse = ()
    values = ()
    for c in tl.static_range(COLUMNS):
        row = tl.minimum(token + c, tokens - 1) * STREAMS
        for g in tl.static_range(STREAMS // 2):
            values = values + (tl.load(streams + (row + 2 * g + pair // 32) * hidden + tile * 32 + pair % 32),)
        for stream in tl.static_range(STREAMS):
            mean = tl.sum(tl.load(squares + (row + stream) * PARTS + part, mask=part < PARTS, other=0.0), axis=0)
            inverse = inverse + (tl.rsqrt(mean / hidden + eps),)
    low = low_values(partial, inverse, token, tokens, rows, STREAMS, SPLITS, LOW_BLOCKS, COLUMNS, FORM)
    n = tl.arange(0, COLUMNS * LOW_BLOCKS)
    place = n % LOW_BLOCKS
    r = place[:, None] * 32 + tl.arange(0, 32)[None, :]
    owner = token + n // LOW_BLOCKS
    gate = quick_sigmoid(low * (1.0 / STREAMS))
    if INJECT:
        if tile == 0:
            asked = (r >= rank) & (r < rank + STREAMS) & (owner < tokens)[:, None]
            tl.store(inject + owner[:, None] * STREAMS + r - rank, 2.0 * gate, mask=asked)
    low = tl.where(r < rank, low * (1.0 / STREAMS) * gate, 0.0)
    mine = (tl.program_id(1) * tl.num_programs(0) + tile) * COLUMNS
    store_each(
        low, mine + n // LOW_BLOCKS, place, place >= 0, low_blocks, low_q, low_d, low_s, low_x, True,
        number_bytes(TYPE) > 0,
    )  # fmt: skip
    tl.debug_barrier()
    x = (low_q, low_d, low_s, low_x, low_blocks, low_valid)
    PAIRS: tl.constexpr = STREAMS // 2
    sums = nothing(COLUMNS * PAIRS, 64, TYPE)
    sums = meet_groups(sums, raws, x, mine, mine + COLUMNS - 1, 0, UNITS, COLUMNS, PAIRS, TYPE, True, EVEN, FORM)
    mixed = ()
    for c in tl.static_range(COLUMNS):
        total = tl.zeros([64], tl.float32)
        for g in tl.static_range(PAIRS):
            y = tree(sums[c * PAIRS + g], 64)
            if SCALED:
                y *= tl.load(up_scale)
            scale = tl.where(pair < 32, inverse[c * STREAMS + 2 * g], inverse[c * STREAMS + 2 * g + 1])
            total += quick_sigmoid(y) * (values[c * PAIRS + g] * scale * gammas[g])
        mixed = mixed + (total,)
    sum_of_pairs = tl.sum(tl.reshape(stack(mixed, 64), [COLUMNS, 2, 32]), axis=1) * (1.0 / STREAMS)
    c = tl.arange(0, COLUMNS)
    store_each(sum_of_pairs, token + c, tile + 0 * c, token + c < tokens, blocks, q, d, s, numbers, FINE, True)


@dataclass(frozen=True)
class Cut:
    """The long product: units of a program (they must divide a stream), and its rows. warps: of a gate's program."""

    units: int = 2
    rows: int = 8
    warps: int = 8


def usual_cut() -> Cut:
    """The interpreter likes few large programs."""
    return Cut(rows=64) if interpreted() else Cut()


def hyper_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool = True, pending: Pending | None = None, cut: Cut | None = None
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """What a block reads of streams [T, S, H], quantised (finely or as experts do), and inject [T, S] or None.

    pending is added to the streams first, in place.
    """
    if streams.shape[0] <= COLUMNS:
        return mix_step(streams, mix, prepared(streams, mix.norm, pending), fine, cut)
    of_mix = (mix.norm, mix.down, mix.up, mix.inject)
    if pending is None:
        return mix_prompt(streams, of_mix, mix.eps)
    if isinstance(pending.output, Parts):  # of a card without tensor cores
        add_up(pending.output, streams, pending.inject)
        return mix_prompt(streams, of_mix, mix.eps)
    return mix_prompt(streams, of_mix, mix.eps, pending.inject, pending.output)


def mix_step(
    streams: torch.Tensor, mix: HyperMix, wide: Wide, fine: bool, cut: Cut | None = None
) -> tuple[Quantised, torch.Tensor | None]:
    """`hyper_mix` of up to 16 tokens, of streams as they are."""
    tokens, count, hidden = streams.shape
    cut = cut or usual_cut()
    device, to, rank, squares = streams.device, target(streams.device), mix.down.rows, wide.squares
    assert hidden % 256 == 0, f"hidden size {hidden} is not a multiple of 256"
    assert count % 2 == 0, f"{count} streams are not pairs"
    partial, splits = long_product(mix, wide.streams, cut)
    mixed = room_for(tokens, hidden, fine, device)
    inject = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    tiles, parts, columns = hidden // 32, squares.shape[1] // count, min(triton.next_power_of_2(tokens), 4)
    groups = -(-tokens // columns)
    low = room_for(groups * tiles * columns, rank, True, device)
    gate_kernel[(tiles, groups)](
        streams, mix.norm, partial, squares, mix.up.data, mix.up.scale if mix.up.scale is not None else mix.up.data,
        low.q, low.d, low.s, low.x, low.blocks, low.valid, mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks,
        inject if inject is not None else mixed.d, hidden, rank, partial.stride(1), tokens, mix.eps,
        STREAMS=count, SPLITS=splits, PARTS=parts, PLACES=triton.next_power_of_2(parts),
        LOW_BLOCKS=triton.next_power_of_2(-(-partial.shape[2] // 32)), COLUMNS=columns, UNITS=-(-mix.up.blocks // 8),
        TYPE=mix.up.type.id, EVEN=mix.up.blocks % 8 == 0, SCALED=mix.up.scale is not None,
        INJECT=inject is not None, FINE=fine, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.warps,
        **to.options,
    )  # fmt: skip
    return mixed, inject


def long_product(mix: HyperMix, wide: Quantised, cut: Cut) -> tuple[torch.Tensor, int]:
    """[splits, T, rank (+ S)] parts of down (and inject) times the streams, and how many parts."""
    units = mix.hidden // 256
    splits = mix.streams * (units // divisor(units, cut.units))
    matrices = (mix.down,) if mix.inject is None else (mix.down, mix.inject)
    rows = sum(m.rows for m in matrices)
    partial = torch.empty(splits, wide.tokens, -(-rows // 32) * 32, device=wide.d.device)[:, :, :rows]
    each = -(-mix.down.blocks // 8) // splits
    columns = min(triton.next_power_of_2(wide.tokens), 4)
    shape = Shape(cut.rows, divisor(each, 5), 1 if columns == 1 or interpreted() else 2, columns)
    launch(matrices, wide, partial, splits, shape=shape)
    return partial, splits


def linear_mix(
    weight: Matrix,
    y: Input,
    streams: torch.Tensor,
    inject: torch.Tensor,
    mix: HyperMix,
    fine: bool = True,
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """Add y [T, K] times weight to the streams, weighted by inject [T, S], in place; then `hyper_mix`."""
    if long(y):
        return hyper_mix(streams, mix, fine, Pending(inject, linear(weight, y)))
    return mix_step(streams, mix, product_into(weight, quantised(y), streams, inject, mix.norm), fine)


def experts_mix(
    layer: Experts,
    x: Input,
    routed: Routed,
    streams: torch.Tensor,
    inject: torch.Tensor,
    mix: HyperMix,
    fine: bool = True,
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """Add the experts' output to the streams, weighted by inject [T, S], in place; then `hyper_mix`."""
    return hyper_mix(streams, mix, fine, Pending(inject, parts_of(layer, x, routed)))
