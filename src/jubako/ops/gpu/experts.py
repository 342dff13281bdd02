"""The mixture of experts for up to 16 tokens, in two launches; the arithmetic is that of csrc/experts.cpp, bit for bit.

A *use* is one expert for one token: use token·k + rank for the routed ones, then tokens·k + token for the shared one.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .activation import Quantised, quantize, room_for, store_blocks
from .integer import fma
from .linear import divisor, store_rows
from .mathfun import sigmoid, silu
from .matrix import Matrix
from .products import fetch_units, meet, nothing, tree
from .slots import Slots, SlotShape
from .target import interpreted, release, target, wait

@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """A layer's experts.

    router  rows of all experts' router, then the shared expert's: [experts + 1, H]; one or two matrices
    routed  the experts' slots; shared: the shared expert as the only slot
    """

    router: tuple[Matrix, ...]
    routed: Slots
    shared: Slots

    @property
    def count(self) -> int:
        return int(self.routed.table.shape[0])


@triton.jit
def hidden_tile(
    gate, up, scales, rows, blocks, tile, x, token, use, to,
    UNITS: tl.constexpr, STEP: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, TILE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """silu(gate)·up of TILE rows of one expert for one token, quantised into use `use` of `to`."""
    number = tile * TILE + tl.arange(0, TILE)
    row = tl.minimum(number, rows - 1)[None, :, None]
    g = nothing(1, TILE, GATE)
    u = nothing(1, TILE, UP)
    for first in range(0, UNITS, STEP):
        of_gate = fetch_units(gate, rows, blocks, row, first, STEP, GATE, EVEN)
        of_up = fetch_units(up, rows, blocks, row, first, STEP, UP, EVEN)
        g = meet(g, of_gate, x, token, token, first, STEP, 1, GATE, False, EVEN, FORM)
        u = meet(u, of_up, x, token, token, first, STEP, 1, UP, False, EVEN, FORM)
    a = tree(g[0], TILE)
    b = tree(u[0], TILE)
    if SCALED:
        a *= tl.load(scales)
        b *= tl.load(scales + 1)
    h = tl.where(number < rows, silu(a, FORM) * b, 0.0)
    q, d, s, numbers, width = to
    COUNT: tl.constexpr = TILE // 32
    store_blocks(tl.reshape(h, [COUNT, 32]), use, tile * COUNT, width, q, d, s, numbers, COUNT, False)


@triton.jit
def gate_up_kernel(
    pool, pool_scales, slot_bytes, up_at, table, rows,
    shared, shared_scales, shared_up_at, shared_rows, blocks,
    ids, uses, chosen, q, d, s, numbers, x_blocks, x_valid, hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks,
    UNITS: tl.constexpr, STEP: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr, SHARED_GATE: tl.constexpr,
    SHARED_UP: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, SHARED_SCALED: tl.constexpr,
    TILE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, use): the shared expert's uses come first."""
    release(OVERLAP)
    wait(OVERLAP)
    tile = tl.program_id(0)
    tokens = tl.num_programs(1) - uses
    use = tl.program_id(1) - tokens
    x = (q, d, s, numbers, x_blocks, x_valid)
    to = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks)
    if use < 0:
        if tile * TILE < shared_rows:
            hidden_tile(
                shared, shared + shared_up_at, shared_scales, shared_rows, blocks, tile, x, use + tokens,
                use + tokens + uses, to, UNITS, 1, SHARED_GATE, SHARED_UP, EVEN, SHARED_SCALED, TILE, FORM,
            )  # fmt: skip
    elif tile * TILE < rows:
        slot = tl.load(table + tl.maximum(tl.load(ids + use), 0))
        if slot >= 0:
            base = pool + slot.to(tl.int64) * slot_bytes
            hidden_tile(
                base, base + up_at, pool_scales + slot * 3, rows, blocks, tile, x, use // chosen, use, to, UNITS,
                STEP, GATE, UP, EVEN, SCALED, TILE, FORM,
            )  # fmt: skip


@triton.jit
def down_kernel(
    pool, pool_scales, slot_bytes, down_at, table, blocks,
    shared, shared_scales, shared_down_at, shared_blocks, share, share_stride,
    ids, weights, hidden, hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid, shared_valid,
    out, out_stride, inject,
    CHOSEN: tl.constexpr, STEP: tl.constexpr, UNITS: tl.constexpr, SHARED_UNITS: tl.constexpr, ROWS: tl.constexpr,
    DOWN: tl.constexpr, SHARED_DOWN: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr,
    SCALED: tl.constexpr, SHARED_SCALED: tl.constexpr, STREAMS: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, token): ROWS rows of the weighted sum over the experts by rank, then of the shared one.

    share: logits of the shared expert's router, `share_stride` apart.
    """
    release(OVERLAP)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(number, hidden - 1)[None, :, None]
    token = tl.program_id(1)
    tokens = tl.num_programs(1)
    of_shared = fetch_units(
        shared + shared_down_at, hidden, shared_blocks, row, 0, SHARED_UNITS, SHARED_DOWN, SHARED_EVEN
    )
    wait(OVERLAP)
    x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, CHOSEN, STEP):
        raws = ()
        slots = ()
        for k in tl.static_range(STEP):
            id = tl.load(ids + token * CHOSEN + first + k)
            slot = tl.where(id >= 0, tl.load(table + tl.maximum(id, 0)), -1)
            base = pool + tl.maximum(slot, 0).to(tl.int64) * slot_bytes + down_at
            raws = raws + (fetch_units(base, hidden, blocks, row, 0, UNITS, DOWN, EVEN),)
            slots = slots + (slot,)
        for k in tl.static_range(STEP):
            use = token * CHOSEN + first + k
            y = tree(meet(nothing(1, ROWS, DOWN), raws[k], x, use, use, 0, UNITS, 1, DOWN, False, EVEN, FORM)[0], ROWS)
            if SCALED:
                y *= tl.load(pool_scales + tl.maximum(slots[k], 0) * 3 + 2)
            weight = tl.load(weights + use)
            total = tl.where(slots[k] >= 0, fma(weight + total * 0.0, y, total, FORM), total)
    use = tokens * CHOSEN + token
    x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, shared_valid)
    y = tree(
        meet(nothing(1, ROWS, SHARED_DOWN), of_shared, x, use, use, 0, SHARED_UNITS, 1, SHARED_DOWN, False, SHARED_EVEN, FORM)[0],
        ROWS,
    )
    if SHARED_SCALED:
        y *= tl.load(shared_scales + 2)
    weight = sigmoid(tl.load(share + token * share_stride) + total * 0.0, FORM)
    total = fma(weight, y, total, FORM)
    store_rows(total, number, hidden, token, out, out_stride, inject, token >= 0, STREAMS, FORM)


@dataclass(frozen=True, slots=True)
class Routed:
    """What the router says of T tokens: ids int32 [T, k], weights float32 [T, k], the shared expert's logit [T]."""

    ids: torch.Tensor
    weights: torch.Tensor
    share: torch.Tensor


@dataclass(frozen=True)
class Cut:
    """units of gate and up fetched together, and rows of a program (32 or more: blocks of the hidden values); experts
    of the down product fetched together, and rows of a program."""

    units: int = 5
    tile: int = 32
    experts: int = 5
    rows: int = 16


def usual_cut() -> Cut:
    """The interpreter likes few large programs."""
    return Cut(tile=64, rows=256) if interpreted() else Cut()


def experts(
    layer: Experts,
    x: torch.Tensor | Quantised,
    routed: Routed,
    out: torch.Tensor | None = None,
    inject: torch.Tensor | None = None,
    cut: Cut | None = None,
) -> torch.Tensor:
    """The chosen experts' weighted sum by rank, then the shared expert's gated output: [T, H].

    With inject [T, S] it is added to streams `out` [T, S, H] instead.
    """
    cut = cut or usual_cut()
    read = x if isinstance(x, Quantised) and not x.fine else coarse(x)
    hidden = gate_up(layer, read, routed, cut)
    shape = layer.routed.shape
    if out is None:
        out = torch.empty(read.tokens, shape.hidden, device=read.d.device)
    down(layer, hidden, routed, out, inject, cut)
    return out


def experts_combine(
    layer: Experts, x: torch.Tensor | Quantised, routed: Routed, streams: torch.Tensor, inject: torch.Tensor
) -> None:
    """Add the experts' output to streams [T, S, H], in place, weighted by inject [T, S]."""
    experts(layer, x, routed, streams, inject)


def coarse(x: torch.Tensor | Quantised) -> Quantised:
    """x in eight bits."""
    return quantize(x.plain() if isinstance(x, Quantised) else x, fine=False)


def gate_up(layer: Experts, x: Quantised, routed: Routed, cut: Cut) -> Quantised:
    """Hidden values of all uses."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(x.d.device)
    tokens, chosen = routed.ids.shape
    height = max(shape.size, shared.shape.size)
    width = max(shape.down_cols, shared.shape.down_cols, height)
    hidden = room_for(tokens * chosen + tokens, -(-width // 256) * 256, False, x.d.device)
    blocks = -(-shape.hidden // 32)
    units = -(-blocks // 8)
    gate_up_kernel[(-(-height // cut.tile), tokens * chosen + tokens)](
        mine.data, _scales(mine), shape.bytes, shape.up_at, mine.table, shape.size,
        shared.data, _scales(shared), shared.shape.up_at, shared.shape.size, blocks,
        routed.ids, tokens * chosen, chosen, x.q, x.d, x.s, x.x, x.blocks, x.valid,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks,
        UNITS=units, STEP=divisor(units, cut.units), GATE=shape.gate.id, UP=shape.up.id,
        SHARED_GATE=shared.shape.gate.id, SHARED_UP=shared.shape.up.id, EVEN=blocks % 8 == 0,
        SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None, TILE=cut.tile, FORM=to.form,
        OVERLAP=to.overlap, num_warps=cut.tile // 4, **to.options,
    )  # fmt: skip
    return hidden


def down(
    layer: Experts, hidden: Quantised, routed: Routed, out: torch.Tensor, inject: torch.Tensor | None, cut: Cut
) -> None:
    """The weighted sum over the uses of each token, into out [T, H] or streams [T, S, H]."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(out.device)
    tokens, chosen = routed.ids.shape
    blocks, shared_blocks = -(-shape.down_cols // 32), -(-shared.shape.down_cols // 32)
    valid, shared_valid = -(-shape.size // 32), -(-shared.shape.size // 32)
    down_kernel[(-(-shape.hidden // cut.rows), tokens)](
        mine.data, _scales(mine), shape.bytes, shape.down_at, mine.table, blocks,
        shared.data, _scales(shared), shared.shape.down_at, shared_blocks, routed.share, routed.share.stride(0),
        routed.ids, routed.weights, shape.hidden, hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks,
        valid, shared_valid, out, out.stride(-2), out if inject is None else inject,
        CHOSEN=chosen, STEP=divisor(chosen, cut.experts), UNITS=-(-blocks // 8),
        SHARED_UNITS=-(-shared_blocks // 8), ROWS=cut.rows, DOWN=shape.down.id, SHARED_DOWN=shared.shape.down.id,
        EVEN=blocks % 8 == 0 and valid >= blocks, SHARED_EVEN=shared_blocks % 8 == 0 and shared_valid >= shared_blocks,
        SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None,
        STREAMS=0 if inject is None else out.shape[1], FORM=to.form, OVERLAP=to.overlap,
        num_warps=cut.rows // 4, **to.options,
    )  # fmt: skip


def _scales(slots: Slots) -> torch.Tensor:
    return slots.scales if slots.scales is not None else slots.table


__all__ = ["Cut", "Experts", "Routed", "SlotShape", "experts", "experts_combine"]
