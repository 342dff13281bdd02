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

from .activation import Quantised, room_for, store_blocks
from .experts import Experts, Parts, Routed, add_up, parts_of, weighted_sum
from .hyper_prompt import PromptParts, mix_prompt
from .integer import fma
from .launch import COLUMNS
from .linear import Input, Shape, divisor, launch, linear
from .mathfun import sigmoid, silu
from .matrix import Matrix
from .products import fetch_units, meet, nothing, tree
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
def square_kernel(
    streams, gamma, q, d, s, numbers, squares, blocks, hidden, inject, output, weights, share,
    STREAMS: tl.constexpr, COUNT: tl.constexpr, PENDING: tl.constexpr, CHOSEN: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (g, t): blocks COUNT·g on of token t's streams times gamma, quantised, and their sum of squares.

    PENDING: first a block's output, weighted by inject [T, S], is added to the streams in place: 1, output [T, H]; 2,
    the weighted sum of experts' outputs.
    """
    release(OVERLAP)
    first = tl.program_id(0) * COUNT
    token = tl.program_id(1)
    k = (first + tl.arange(0, COUNT))[:, None] * 32 + tl.arange(0, 32)[None, :]
    weight = tl.load(gamma + k)
    wait(OVERLAP)
    at = streams + token * STREAMS * hidden + k
    x = tl.load(at)
    if PENDING > 0:
        stream = first * 32 // hidden
        h = k - stream * hidden
        if PENDING == 1:
            y = tl.load(output + token * hidden + h)
        else:
            y = weighted_sum(output, weights, share, token, tl.num_programs(1), hidden, h, CHOSEN, FORM)
        x = fma(tl.load(inject + token * STREAMS + stream) + y * 0.0, y, x, FORM)
        tl.store(at, x)
    store_blocks(x * weight, token, first, blocks, q, d, s, numbers, COUNT, True)
    tl.store(squares + token * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(x * x, axis=1), axis=0))


@triton.jit
def gate_kernel(
    streams, gamma, partial, squares, up, up_scale, low_q, low_d, low_s, low_x, low_blocks, low_valid,
    q, d, s, numbers, blocks, inject, hidden, rank, rows, eps,
    STREAMS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, LOW_BLOCKS: tl.constexpr,
    UNITS: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    INJECT: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, t): the mixed hidden values of TILE elements, quantised; program 0 writes inject.

    partial [SPLITS, T, rows]: products of rank rows, and of the inject rows, each over a part of one stream.
    low_…: a `Quantised` with a token for every program, for its own use.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1)
    tokens = tl.num_programs(1)
    h = tile * TILE + tl.arange(0, TILE)
    raws = ()
    for stream in tl.static_range(STREAMS):
        row = (stream * hidden + h)[None, :, None]
        raws = raws + (fetch_units(up, STREAMS * hidden, tl.cdiv(rank, 32), row, 0, UNITS, TYPE, EVEN),)
    wait(OVERLAP)
    r = tl.arange(0, LOW_BLOCKS * 32)
    part = tl.arange(0, PLACES)
    inverse = ()
    for stream in tl.static_range(STREAMS):
        at = squares + (token * STREAMS + stream) * PARTS + part
        mean = tl.sum(tl.load(at, mask=part < PARTS, other=0.0), axis=0) / hidden
        inverse = inverse + (tl.div_rn(mean * 0.0 + 1.0, tl.sqrt_rn(mean + eps)),)
    low = tl.zeros([LOW_BLOCKS * 32], tl.float32)
    for stream in tl.static_range(STREAMS):
        of_stream = tl.zeros([LOW_BLOCKS * 32], tl.float32)
        for i in tl.static_range(SPLITS // STREAMS):
            at = ((stream * (SPLITS // STREAMS) + i) * tokens + token) * rows
            of_stream += tl.load(partial + at + r, mask=r < rows, other=0.0)
        low = fma(inverse[stream] + low * 0.0, of_stream, low, FORM)
    if INJECT:
        if tile == 0:
            weight = 2.0 * sigmoid(low * (1.0 / STREAMS), FORM)
            tl.store(inject + token * STREAMS + r - rank, weight, mask=(r >= rank) & (r < rank + STREAMS))
    low = tl.where(r < rank, silu(low * (1.0 / STREAMS), FORM), 0.0)
    mine = token * tl.num_programs(0) + tile
    store_blocks(tl.reshape(low, [LOW_BLOCKS, 32]), mine, 0, low_blocks, low_q, low_d, low_s, low_x, LOW_BLOCKS, True)
    tl.debug_barrier()
    x = (low_q, low_d, low_s, low_x, low_blocks, low_valid)
    total = tl.zeros([TILE], tl.float32)
    for stream in tl.static_range(STREAMS):
        y = tree(
            meet(nothing(1, TILE, TYPE), raws[stream], x, mine, mine, 0, UNITS, 1, TYPE, True, EVEN, FORM)[0], TILE
        )
        if SCALED:
            y *= tl.load(up_scale)
        value = tl.load(streams + (token * STREAMS + stream) * hidden + h)
        normed = value * inverse[stream] * tl.load(gamma + stream * hidden + h)
        total = fma(sigmoid(y, FORM), normed, total, FORM)
    COUNT: tl.constexpr = TILE // 32
    done = tl.reshape(total * (1.0 / STREAMS), [COUNT, 32])
    if FINE:
        store_blocks(done, token, tile * COUNT, blocks, q, d, s, numbers, COUNT, True)
    else:
        store_blocks(done, token, tile * COUNT, blocks, q, d, s, numbers, COUNT, False)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A block's output that the streams still lack: [T, H] or experts' parts, and how strongly each stream takes it."""

    inject: torch.Tensor
    output: torch.Tensor | Parts | PromptParts


@dataclass(frozen=True)
class Cut:
    """units: how many units of the long rows a program takes (they must divide a stream), and rows; then the hidden
    elements of a program of the second product."""

    units: int = 2
    rows: int = 8
    tile: int = 32


def usual_cut(hidden: int) -> Cut:
    """The interpreter likes few large programs."""
    return Cut(rows=64, tile=divisor(hidden // 32, 8) * 32) if interpreted() else Cut()


def hyper_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool = True, pending: Pending | None = None, cut: Cut | None = None
) -> tuple[Quantised | Halves, torch.Tensor | None]:
    """What a block reads of streams [T, S, H], quantised (finely or as experts do), and inject [T, S] or None.

    pending is added to the streams first, in place.
    """
    tokens, count, hidden = streams.shape
    if tokens > COLUMNS:
        of_mix = (mix.norm, mix.down, mix.up, mix.inject)
        if pending is None:
            return mix_prompt(streams, of_mix, mix.eps)
        if isinstance(pending.output, Parts):  # of a card without tensor cores
            add_up(pending.output, streams, pending.inject)
            return mix_prompt(streams, of_mix, mix.eps)
        return mix_prompt(streams, of_mix, mix.eps, pending.inject, pending.output)
    cut = cut or usual_cut(hidden)
    device, to, rank = streams.device, target(streams.device), mix.down.rows
    assert hidden % 256 == 0, f"hidden size {hidden} is not a multiple of 256"
    wide, squares = prepared(streams, mix, pending)
    partial, splits = long_product(mix, wide, cut)
    mixed = room_for(tokens, hidden, fine, device)
    inject = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    tiles, parts = hidden // cut.tile, squares.shape[1] // count
    low = room_for(tokens * tiles, rank, True, device)
    gate_kernel[(tiles, tokens)](
        streams, mix.norm, partial, squares, mix.up.data, mix.up.scale if mix.up.scale is not None else mix.up.data,
        low.q, low.d, low.s, low.x, low.blocks, low.valid, mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks,
        inject if inject is not None else mixed.d, hidden, rank, partial.shape[2], mix.eps,
        STREAMS=count, SPLITS=splits, PARTS=parts, PLACES=triton.next_power_of_2(parts),
        LOW_BLOCKS=triton.next_power_of_2(-(-partial.shape[2] // 32)), UNITS=-(-mix.up.blocks // 8), TILE=cut.tile,
        TYPE=mix.up.type.id, EVEN=mix.up.blocks % 8 == 0, SCALED=mix.up.scale is not None,
        INJECT=inject is not None, FINE=fine, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.tile // 4,
        **to.options,
    )  # fmt: skip
    return mixed, inject


def prepared(streams: torch.Tensor, mix: HyperMix, pending: Pending | None) -> tuple[Quantised, torch.Tensor]:
    """The streams times gamma, finely quantised, and sums of squares [T, S·parts]; `pending` is added before."""
    tokens, count, hidden = streams.shape
    device, to = streams.device, target(streams.device)
    wide = room_for(tokens, count * hidden, True, device)
    squares = torch.empty(tokens, count * hidden // 256, device=device)
    inject = output = weights = share = squares
    kind, chosen = 0, 1
    if pending is not None:
        inject = pending.inject
        if isinstance(pending.output, Parts):
            kind, chosen = 2, pending.output.routed.ids.shape[1]
            output, weights, share = pending.output.outputs, pending.output.routed.weights, pending.output.routed.share
        else:
            kind, output = 1, pending.output
    square_kernel[(squares.shape[1], tokens)](
        streams, mix.norm, wide.q, wide.d, wide.s, wide.x, squares, wide.blocks, hidden, inject, output, weights, share,
        STREAMS=count, COUNT=8, PENDING=kind, CHOSEN=chosen, FORM=to.form, OVERLAP=to.overlap, num_warps=2,
        **to.options,
    )  # fmt: skip
    return wide, squares


def long_product(mix: HyperMix, wide: Quantised, cut: Cut) -> tuple[torch.Tensor, int]:
    """[splits, T, rank (+ S)] parts of down (and inject) times the streams, and how many parts."""
    units = mix.hidden // 256
    splits = mix.streams * (units // divisor(units, cut.units))
    matrices = (mix.down,) if mix.inject is None else (mix.down, mix.inject)
    partial = torch.empty(splits, wide.tokens, sum(m.rows for m in matrices), device=wide.d.device)
    each = -(-mix.down.blocks // 8) // splits
    several = wide.tokens > 1 and not interpreted()
    shape = Shape(cut.rows, 1, 2, 2 if wide.tokens == 2 else 4) if several else Shape(cut.rows, divisor(each, 5))
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
    return hyper_mix(streams, mix, fine, Pending(inject, linear(weight, y)))


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


@triton.jit
def combine_kernel(
    streams, inject, out, hidden, PIECE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, s, t): streams[t, s] += inject[t, s]·out[t]."""
    release(OVERLAP)
    wait(OVERLAP)
    h = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    row = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    at = streams + row.to(tl.int64) * hidden + h
    y = tl.load(out + tl.program_id(2).to(tl.int64) * hidden + h, mask=h < hidden, other=0.0)
    x = tl.load(at, mask=h < hidden, other=0.0)
    tl.store(at, fma(tl.load(inject + row) + y * 0.0, y, x, FORM), mask=h < hidden)


def hyper_combine(streams: torch.Tensor, inject: torch.Tensor, out: torch.Tensor) -> None:
    """Add a block's output [T, H] to streams [T, S, H], in place, weighted by inject [T, S]."""
    tokens, count, hidden = streams.shape
    to = target(streams.device)
    combine_kernel[(-(-hidden // 1024), count, tokens)](
        streams, inject, out, hidden, PIECE=1024, FORM=to.form, OVERLAP=to.overlap, num_warps=4, **to.options
    )
