"""Hyper-connections of a prompt, in few passes over the streams.

settle   what the block before gave enters the streams; each stream over its root mean square, times gamma: halves
library  the long product, to rank values and inject
gates    the wide product, sigmoids and the mean over the streams in one kernel
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .matrix import Matrix
from .prompt import Halves, halves, product
from .target import interpreted, target

HALF = 1 / 16  # hidden values and outputs of experts are kept as sixteenths of them in float16


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What a prompt's experts gave, HALF times: outputs float16 [T·k, H] of every use, shared float32 [T, H] of the
    shared expert; weights [T, k] and share [T] as in `experts.Routed`."""

    outputs: torch.Tensor
    shared: torch.Tensor
    weights: torch.Tensor
    share: torch.Tensor


@triton.jit
def _given(
    output, shared, weights, share, token, hidden, h, live,
    PENDING: tl.constexpr, CHOSEN: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Elements h of what a block gave for a token: 1, output [T, H]; 2, the weighted sum of its experts' outputs."""
    if PENDING == 1:
        total = tl.load(output + token * hidden + h, mask=live, other=0.0)
    else:
        total = tl.zeros(h.shape, tl.float32)
        for rank in tl.static_range(CHOSEN):
            use = token * CHOSEN + rank
            y = tl.load(output + use * hidden + h, mask=live, other=0.0).to(tl.float32)
            total += tl.load(weights + use) * y
        y = tl.load(shared + token * hidden + h, mask=live, other=0.0).to(tl.float32)
        total = (total + tl.sigmoid(tl.load(share + token)) * y) * (1.0 / HALF)
    return total


@triton.jit
def settle_kernel(
    streams, inject, output, shared, weights, share, gamma, normed, hidden, eps,
    STREAMS: tl.constexpr, SIZE: tl.constexpr, PENDING: tl.constexpr, CHOSEN: tl.constexpr, NORMED: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Program t: streams += inject·(what a block gave); normed: each stream over its root mean square, times gamma.

    As float16: at most √H·gamma, which fits.
    """
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, SIZE)
    live = h < hidden
    if PENDING > 0:
        given = _given(output, shared, weights, share, token, hidden, h, live, PENDING, CHOSEN, HALF)
    for stream in tl.static_range(STREAMS):
        at = (token * STREAMS + stream) * hidden + h
        x = tl.load(streams + at, mask=live, other=0.0)
        if PENDING > 0:
            x += tl.load(inject + token * STREAMS + stream) * given
            tl.store(streams + at, x, mask=live)
        if NORMED:
            y = x * tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
            y *= tl.load(gamma + stream * hidden + h, mask=live, other=0.0)
            tl.store(normed + at, y.to(tl.float16), mask=live)


def settle(
    streams: torch.Tensor,
    inject: torch.Tensor | None,
    output: torch.Tensor | PromptParts | None,
    gamma: torch.Tensor | None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Add what a block gave [T, H] or experts' parts, weighted by inject [T, S], to streams [T, S, H], in place.

    gamma [S·H]: gives the streams over their root mean squares times gamma, float16 [T, S·H].
    """
    tokens, count, hidden = streams.shape
    normed = torch.empty(tokens if gamma is not None else 0, count * hidden, dtype=torch.float16, device=streams.device)
    first = shared = weights = share = streams
    kind, chosen = 0, 1
    if isinstance(output, PromptParts):
        kind, chosen = 2, output.weights.shape[1]
        first, shared, weights, share = output.outputs, output.shared, output.weights, output.share
    elif output is not None:
        kind, first = 1, output
    settle_kernel[(tokens,)](
        streams, inject if inject is not None else streams, first, shared, weights, share,
        gamma if gamma is not None else streams, normed, hidden, eps,
        STREAMS=count, SIZE=triton.next_power_of_2(hidden), PENDING=kind, CHOSEN=chosen, NORMED=gamma is not None,
        HALF=HALF, num_warps=8,
    )  # fmt: skip
    return normed


@triton.jit
def low_kernel(
    low, stride, narrow, factor, inject, rank,
    STREAMS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, INJECT: tl.constexpr,
):  # fmt: skip
    """Program t: silu of a row's rank values over STREAMS, over their largest magnitude, in halves; and inject."""
    token = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, SIZE)
    width = rank + STREAMS if INJECT else rank
    x = tl.load(low + token * stride + r, mask=r < width, other=0.0) * (1.0 / STREAMS)
    if INJECT:
        here = (r >= rank) & (r < rank + STREAMS)
        tl.store(inject + token * STREAMS + r - rank, 2.0 * tl.sigmoid(x), mask=here)
    y = tl.where(r < rank, x * tl.sigmoid(x), 0.0)
    largest = tl.maximum(tl.max(tl.abs(y), axis=0), 7.888609052210118e-31)  # 2^-100
    tl.store(narrow + token * RANK + r, (y / largest).to(tl.float16), mask=r < RANK)
    tl.store(factor + token, largest)


@triton.jit
def gates_kernel(
    narrow, factor, up, normed, mixed, tokens, hidden,
    STREAMS: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (h, t): TILE elements of the mean over the streams of sigmoid(up·narrow·factor)·normed, ROWS tokens.

    Offsets are 32 bits wide.
    """
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, STEP)
    row = tl.minimum(t, tokens - 1)
    live = (t < tokens)[:, None] & (h < hidden)[None, :]
    f = tl.load(factor + row)[:, None]
    total = tl.zeros([ROWS, TILE], tl.float32)
    for stream in range(STREAMS):
        gate = tl.zeros([ROWS, TILE], tl.float32) + f * 0.0  # of plain zeros ptxas 12.8 makes no product at all
        at = up + (stream * hidden + tl.minimum(h, hidden - 1))[:, None] * RANK
        for first in tl.range(0, RANK, STEP, num_stages=STAGES):
            a = tl.load(narrow + row[:, None] * RANK + (first + k)[None, :])
            b = tl.load(at + (first + k)[None, :])
            gate = tl.dot(a, tl.trans(b), acc=gate)
        x = tl.load(normed + ((row * STREAMS + stream) * hidden)[:, None] + h[None, :], mask=live, other=0.0)
        total += tl.sigmoid(gate * f) * x.to(tl.float32)
    tl.store(mixed + (row * hidden)[:, None] + h[None, :], (total * (1.0 / STREAMS)).to(tl.float16), mask=live)


@dataclass(frozen=True)
class GatesCut:
    """Tokens and elements of a program of the wide product, rank values of a step, steps on their way at once."""

    rows: int = 128
    tile: int = 64
    step: int = 64
    stages: int = 3
    warps: int = 8


def usual_cut(rank: int, device: torch.device) -> GatesCut:
    """The interpreter likes few large programs; without tensor cores sums take the registers."""
    if interpreted():
        return GatesCut(64, 256, rank, 1)
    return GatesCut() if target(device).dot else GatesCut(32, 32, 32, 1, 4)


def gates(
    narrow: torch.Tensor, factor: torch.Tensor, up: torch.Tensor, normed: torch.Tensor, streams: int,
    cut: GatesCut | None = None,
) -> torch.Tensor:  # fmt: skip
    """The mixed hidden values float16 [T, H] of rank values [T, R], their factor [T], up [S·H, R], normed [T, S·H]."""
    tokens, rank = narrow.shape
    assert normed.numel() < 2**31
    hidden = normed.shape[1] // streams
    cut = cut or usual_cut(rank, normed.device)
    mixed = torch.empty(tokens, hidden, dtype=torch.float16, device=normed.device)
    gates_kernel[(-(-hidden // cut.tile), -(-tokens // cut.rows))](
        narrow, factor, up, normed, mixed, tokens, hidden,
        STREAMS=streams, RANK=rank, ROWS=cut.rows, TILE=cut.tile, STEP=cut.step, STAGES=cut.stages,
        num_warps=cut.warps,
    )  # fmt: skip
    return mixed


def mix_prompt(
    normed: torch.Tensor, count: int, down: Matrix, up: Matrix, written: Matrix | None
) -> tuple[Halves, torch.Tensor | None]:
    """What a block reads of `settle`'s normed [T, S·H], and how strongly each of `count` streams takes what comes."""
    tokens, device = len(normed), normed.device
    low = product(normed, halves([down] if written is None else [down, written]))
    wide = halves([up])
    rank = -(-down.rows // 64) * 64
    if rank != down.rows:
        wide = torch.nn.functional.pad(wide, (0, rank - down.rows))
    narrow = torch.empty(tokens, rank, dtype=torch.float16, device=device)
    factor = torch.empty(tokens, device=device)
    next_inject = None if written is None else torch.empty(tokens, count, device=device)
    low_kernel[(tokens,)](
        low, low.stride(0), narrow, factor, next_inject if next_inject is not None else factor, down.rows,
        STREAMS=count, RANK=rank, SIZE=triton.next_power_of_2(max(rank, down.rows + count)),
        INJECT=next_inject is not None, num_warps=2,
    )  # fmt: skip
    return Halves(gates(narrow, factor, wide, normed, count)), next_inject
