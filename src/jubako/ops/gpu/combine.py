"""What a block gives, added to the streams, and the streams times gamma in sixteen bits: what the next mix starts from.

Scaling by the root mean square comes after the mix's first product: here the sums of squares add up only.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, stack, store_blocks, store_each
from .experts import Parts, weighted_sum
from .hyper_prompt import PromptParts
from .integer import fma
from .linear import Shape, divisor, tile_sums
from .matrix import Matrix
from .mix_tiles import product_tiles_kernel
from .products import thirty_two, tree
from .target import interpreted, release, target, wait
from .tiles import TILED


@dataclass(frozen=True, slots=True, eq=False)
class Wide:
    """Streams times gamma, S·H wide, and sums of squares [T, S·parts], each over a part of one stream."""

    streams: Quantised
    squares: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A block's output that the streams still lack: [T, H] or experts' parts, and how strongly each stream takes it."""

    inject: torch.Tensor
    output: torch.Tensor | Parts | PromptParts


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


def prepared(streams: torch.Tensor, gamma: torch.Tensor, pending: Pending | None) -> Wide:
    """Streams [T, S, H] ready for a mix; `pending` is added before, in place."""
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
        streams, gamma, wide.q, wide.d, wide.s, wide.x, squares, wide.blocks, hidden, inject, output, weights, share,
        STREAMS=count, COUNT=8, PENDING=kind, CHOSEN=chosen, FORM=to.form, OVERLAP=to.overlap, num_warps=2,
        **to.options,
    )  # fmt: skip
    return Wide(wide, squares)


@triton.jit
def product_kernel(
    base, scale, blocks, x_q, x_d, x_s, x_x, x_blocks, x_valid, streams, inject, gamma,
    q, d, s, numbers, squares, wide, hidden, tokens,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, STREAMS: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): 32 rows of a product for COLUMNS tokens, added to all their streams, and those made `Wide`."""
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    h = tile * 32 + tl.arange(0, 32)
    gammas = ()
    for stream in tl.static_range(STREAMS):
        gammas = gammas + (tl.load(gamma + stream * hidden + h),)
    x = (x_q, x_d, x_s, x_x, x_blocks, x_valid)
    GROUPS: tl.constexpr = 32 // ROWS
    sums = tile_sums(
        base, hidden, blocks, tile * 32, x, token, tokens, 0, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE,
        EVEN, FORM, OVERLAP,
    )  # fmt: skip
    made = ()
    plain = ()
    for c in tl.static_range(COLUMNS):
        live = token + c < tokens
        if GROUPS == 2:
            halves = tl.join(tree(sums[2 * c], ROWS), tree(sums[2 * c + 1], ROWS))
            y = tl.reshape(tl.trans(halves), [32])
        else:
            y = tree(sums[c], 32)
        if SCALED:
            y *= tl.load(scale + h)
        for stream in tl.static_range(STREAMS):
            row = (token + c) * STREAMS + stream
            weight = tl.load(inject + row, mask=live, other=0.0)
            old = tl.load(streams + row * hidden + h, mask=live, other=0.0)
            value = fma(weight + y * 0.0, y, old, FORM)
            tl.store(streams + row * hidden + h, value, mask=live)
            plain = plain + (value,)
            made = made + (value * gammas[stream],)
    n = tl.arange(0, COLUMNS * STREAMS)
    owner = token + n // STREAMS
    block = n % STREAMS * (hidden // 32) + tile
    store_each(stack(made, 32), owner, block, owner < tokens, wide, q, d, s, numbers, True, True)
    rows = stack(plain, 32)
    tl.store(squares + (token * STREAMS + n) * tl.num_programs(0) + tile, thirty_two(rows * rows), mask=owner < tokens)


def product_into(
    weight: Matrix, x: Quantised, streams: torch.Tensor, inject: torch.Tensor, gamma: torch.Tensor,
    shape: Shape | None = None,
) -> Wide:  # fmt: skip
    """Add weight times x [T, K] to streams [T, S, H], in place, weighted by inject [T, S]; what they are then."""
    tokens, count, hidden = streams.shape
    device, to = streams.device, target(streams.device)
    units = -(-weight.blocks // 8)
    wide = room_for(tokens, count * hidden, True, device)
    squares = torch.empty(tokens, count * hidden // 32, device=device)
    if weight.type is TILED:
        assert x.fine and x.valid >= weight.blocks
        fours = triton.next_power_of_2(-(-tokens // 4))
        product_tiles_kernel[(hidden // 32,)](
            weight.data, weight.scale_or_data, units, x.q, x.d, x.blocks, streams, inject, gamma,
            wide.q, wide.d, wide.s, wide.x, squares, wide.blocks, hidden, tokens,
            UNITS=units, STEP=divisor(units, {1: 12, 2: 5}.get(fours, 2)), FOURS=fours,
            SCALED=weight.scale is not None, STREAMS=count, FORM=to.form, OVERLAP=to.overlap, num_warps=8, **to.options,
        )  # fmt: skip
        return Wide(wide, squares)
    columns = min(triton.next_power_of_2(tokens), 4) if to.shares else 1
    if shape is None:
        shape = Shape(32, divisor(units, 12)) if columns == 1 else Shape(16, divisor(units, 6))
        shape = Shape(32, 1) if interpreted() else shape
    product_kernel[(hidden // 32, -(-tokens // columns))](
        weight.data, weight.scale_or_data, weight.blocks,
        x.q, x.d, x.s, x.x, x.blocks, x.valid, streams, inject, gamma,
        wide.q, wide.d, wide.s, wide.x, squares, wide.blocks, hidden, tokens,
        UNITS=units, STEP=shape.step, ROWS=shape.rows, COLUMNS=columns,
        TYPE=weight.type.id, FINE=x.fine, EVEN=weight.blocks % 8 == 0 and x.valid >= weight.blocks,
        SCALED=weight.scale is not None, STREAMS=count, FORM=to.form_of(columns), OVERLAP=to.overlap,
        num_warps=shape.warps, **to.options,
    )  # fmt: skip
    return Wide(wide, squares)


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
