"""What a block gives, added to the streams, and the streams times gamma in sixteen bits: what the next mix starts from.

Scaling by the root mean square comes after the mix's first product: here the sums of squares add up only.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, store_blocks
from .experts import Parts, weighted_sum
from .hyper_prompt import PromptParts
from .integer import fma
from .target import release, target, wait


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
