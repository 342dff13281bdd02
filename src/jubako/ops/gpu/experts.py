"""The mixture of experts for up to 16 tokens, in two launches and the sum, with the bits of csrc/experts.cpp.

A *use* is one expert for one token: use token·k + rank for the routed ones, then tokens·k + token for the shared one.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from .activation import Quantised, quantize, room_for, store_blocks
from .away import Away, collect, ring
from .hyper_prompt import PromptParts, settle
from .integer import fma
from .launch import COLUMNS
from .linear import Input, divisor, prompt_of, store_rows
from .link import fetch
from .mathfun import sigmoid, silu
from .matrix import Matrix
from .products import fetch_units, lane_rows, meet, nothing, tree
from .slots import Slots
from .target import interpreted, release, target, wait


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """A layer's experts.

    router  rows of all experts' router, then the shared expert's: [experts + 1, H]; one or two matrices
    routed  the experts' slots; shared: the shared expert as the only slot
    away    how those without a slot are reached; None where every expert has one
    """

    router: tuple[Matrix, ...]
    routed: Slots
    shared: Slots
    away: Away | None = None

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
    row = tl.minimum(tile * TILE + lane_rows(TILE), rows - 1)
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
    pool, pool_scales, slot_bytes, up_at, slots, rows,
    shared, shared_scales, shared_up_at, shared_rows, blocks,
    uses, chosen, q, d, s, numbers, x_blocks, x_valid, hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks,
    UNITS: tl.constexpr, STEP: tl.constexpr, SHARED_STEP: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr,
    SHARED_GATE: tl.constexpr, SHARED_UP: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    SHARED_SCALED: tl.constexpr, TILE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
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
                use + tokens + uses, to, UNITS, SHARED_STEP, SHARED_GATE, SHARED_UP, EVEN, SHARED_SCALED, TILE, FORM,
            )  # fmt: skip
    elif tile * TILE < rows:
        slot = tl.load(slots + use)
        if slot >= 0:
            base = pool + slot.to(tl.int64) * slot_bytes
            hidden_tile(
                base, base + up_at, pool_scales + slot * 3, rows, blocks, tile, x, use // chosen, use, to, UNITS,
                STEP, GATE, UP, EVEN, SCALED, TILE, FORM,
            )  # fmt: skip


@triton.jit
def output_tile(
    down, scale, rows, blocks, top, x, use, parts,
    UNITS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `top` on of one expert's output for one use, into parts [use]."""
    number = top + tl.arange(0, ROWS)
    row = tl.minimum(top + lane_rows(ROWS), rows - 1)
    raws = fetch_units(down, rows, blocks, row, 0, UNITS, TYPE, EVEN)
    y = tree(meet(nothing(1, ROWS, TYPE), raws, x, use, use, 0, UNITS, 1, TYPE, False, EVEN, FORM)[0], ROWS)
    if SCALED:
        y *= tl.load(scale)
    tl.store(parts + use * rows + number, y, mask=number < rows)


@triton.jit
def down_kernel(
    pool, pool_scales, slot_bytes, down_at, slots, blocks,
    shared, shared_scales, shared_down_at, shared_blocks, uses,
    hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid, shared_valid, parts, hidden,
    UNITS: tl.constexpr, SHARED_UNITS: tl.constexpr, ROWS: tl.constexpr, DOWN: tl.constexpr,
    SHARED_DOWN: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, SCALED: tl.constexpr,
    SHARED_SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, use): ROWS rows of the output of one use; those of the shared expert come first."""
    release(OVERLAP)
    wait(OVERLAP)
    top = tl.program_id(0) * ROWS
    number = top + tl.arange(0, ROWS)
    tokens = tl.num_programs(1) - uses
    use = tl.program_id(1) - tokens
    if use < 0:
        x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, shared_valid)
        output_tile(
            shared + shared_down_at, shared_scales + 2, hidden, shared_blocks, top, x, use + tokens + uses, parts,
            SHARED_UNITS, ROWS, SHARED_DOWN, SHARED_EVEN, SHARED_SCALED, FORM,
        )  # fmt: skip
    else:
        x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid)
        slot = tl.load(slots + use)
        if slot >= 0:
            output_tile(
                pool + slot.to(tl.int64) * slot_bytes + down_at, pool_scales + slot * 3 + 2, hidden, blocks, top,
                x, use, parts, UNITS, ROWS, DOWN, EVEN, SCALED, FORM,
            )  # fmt: skip
        else:
            tl.store(parts + use * hidden + number, tl.zeros([ROWS], tl.float32), mask=number < hidden)


@triton.jit
def weighted_sum(parts, weights, share, token, tokens, hidden, at, CHOSEN: tl.constexpr, FORM: tl.constexpr):
    """Elements `at` of a token's sum over its experts by rank, then of the shared one, weighted by sigmoid(share)."""
    total = tl.zeros_like(at).to(tl.float32)
    for rank in tl.static_range(CHOSEN):
        use = token * CHOSEN + rank
        y = tl.load(parts + use * hidden + at)
        total = fma(tl.load(weights + use) + total * 0.0, y, total, FORM)
    y = tl.load(parts + (tokens * CHOSEN + token) * hidden + at)
    return fma(sigmoid(tl.load(share + token) + y * 0.0, FORM), y, total, FORM)


@triton.jit
def sum_kernel(
    parts, weights, share, out, inject, hidden,
    PIECE: tl.constexpr, CHOSEN: tl.constexpr, STREAMS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): the weighted sum to out [T, H], or added to streams."""
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(1)
    at = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    held = tl.minimum(at, hidden - 1)
    total = weighted_sum(parts, weights, share, token, tl.num_programs(1), hidden, held, CHOSEN, FORM)
    store_rows(total, at, hidden, token, out, hidden, inject, token >= 0, STREAMS, FORM)


@dataclass(frozen=True, slots=True)
class Routed:
    """What the router says of T tokens: ids int32 [T, k], weights float32 [T, k], the shared expert's logit [T].

    slots int32 [T, k]: where the experts are, -1 for absent; None until somebody has looked them up.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    share: torch.Tensor
    slots: torch.Tensor | None = None

    def slots_in(self, table: torch.Tensor) -> torch.Tensor:
        """The slots by a layer's table; negative ids are absent."""
        if self.slots is not None:
            return self.slots
        return torch.where(self.ids >= 0, table[self.ids.clamp_min(0).long()], -1)


@dataclass(frozen=True)
class Cut:
    """units of gate and up fetched together, and rows of a program (32 or more: blocks of the hidden values); rows of
    a program of the down product."""

    units: int = 5
    tile: int = 32
    rows: int = 16


def usual_cut() -> Cut:
    """The interpreter likes few large programs."""
    return Cut(tile=64, rows=256) if interpreted() else Cut()


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Outputs of all uses [T·k + T, H], still to be weighted and added up."""

    outputs: torch.Tensor
    routed: Routed


def parts_of(layer: Experts, x: Input, routed: Routed, cut: Cut | None = None) -> Parts | PromptParts:
    """The output of every chosen expert for every token of x [T, H], and of the shared one."""
    away = layer.away
    if len(routed.ids) > COLUMNS and away is not None and away.stream is not None:
        here = replace(layer, routed=away.stream.whole(away.layer), away=None)
        parts = parts_of(here, x, replace(routed, slots=None), cut)
        away.stream.done(away.layer)
        return parts
    if len(routed.ids) > COLUMNS and target(routed.ids.device).dot:
        from .expert_prompt import parts_of_prompt

        return parts_of_prompt(layer, prompt_of(x), routed)
    cut = cut or usual_cut()
    read = x if isinstance(x, Quantised) and not x.fine else coarse(x)
    if away is None:
        return Parts(down(layer, gate_up(layer, read, routed, cut), routed, cut), routed)
    slots = routed.slots_in(layer.routed.table)
    routed = replace(routed, slots=slots)
    ring(away, read, routed.ids, slots)
    if away.link is not None:
        fetch(away.link, layer.routed, slots.numel())
    outputs = down(layer, gate_up(layer, read, routed, cut), routed, cut)
    collect(away, routed.ids, slots, outputs)
    return Parts(outputs, routed)


def add_up(parts: Parts | PromptParts, out: torch.Tensor, inject: torch.Tensor | None = None) -> torch.Tensor:
    """Every token's weighted sum, to out [T, H] or, with inject [T, S], added to streams `out` [T, S, H]."""
    if isinstance(parts, PromptParts):
        if inject is not None:
            settle(out, inject, parts, None)
        else:
            settle(out.zero_()[:, None], torch.ones_like(out[:, :1]), parts, None)
        return out
    tokens, chosen = parts.routed.ids.shape
    hidden, to = parts.outputs.shape[1], target(out.device)
    sum_kernel[(-(-hidden // 256), tokens)](
        parts.outputs, parts.routed.weights, parts.routed.share, out, out if inject is None else inject, hidden,
        PIECE=256, CHOSEN=chosen, STREAMS=0 if inject is None else out.shape[1], FORM=to.form, OVERLAP=to.overlap,
        num_warps=2, **to.options,
    )  # fmt: skip
    return out


def experts(layer: Experts, x: Input, routed: Routed, cut: Cut | None = None) -> torch.Tensor:
    """The chosen experts' weighted sum by rank, then the shared expert's gated output: [T, H]."""
    parts = parts_of(layer, x, routed, cut)
    return add_up(parts, torch.empty(len(routed.ids), layer.routed.shape.hidden, device=parts.outputs.device))


def experts_combine(layer: Experts, x: Input, routed: Routed, streams: torch.Tensor, inject: torch.Tensor) -> None:
    """Add the experts' output to streams [T, S, H], in place, weighted by inject [T, S]."""
    add_up(parts_of(layer, x, routed), streams, inject)


def coarse(x: Input) -> Quantised:
    """x in eight bits."""
    return quantize(x if isinstance(x, torch.Tensor) else x.plain(), fine=False)


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
        mine.data, _scales(mine), shape.bytes, shape.up_at, routed.slots_in(mine.table), shape.size,
        shared.data, _scales(shared), shared.shape.up_at, shared.shape.size, blocks,
        tokens * chosen, chosen, x.q, x.d, x.s, x.x, x.blocks, x.valid,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks,
        UNITS=units, STEP=divisor(units, cut.units), SHARED_STEP=divisor(units, 2), GATE=shape.gate.id,
        UP=shape.up.id, SHARED_GATE=shared.shape.gate.id, SHARED_UP=shared.shape.up.id, EVEN=blocks % 8 == 0,
        SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None, TILE=cut.tile, FORM=to.form,
        OVERLAP=to.overlap, num_warps=cut.tile // 4, **to.options,
    )  # fmt: skip
    return hidden


def down(layer: Experts, hidden: Quantised, routed: Routed, cut: Cut) -> torch.Tensor:
    """Outputs [T·k + T, H] of all uses."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(hidden.d.device)
    uses, tokens = routed.ids.numel(), len(routed.ids)
    blocks, shared_blocks = -(-shape.down_cols // 32), -(-shared.shape.down_cols // 32)
    valid, shared_valid = -(-shape.size // 32), -(-shared.shape.size // 32)
    parts = torch.empty(uses + tokens, shape.hidden, device=hidden.d.device)
    down_kernel[(-(-shape.hidden // cut.rows), uses + tokens)](
        mine.data, _scales(mine), shape.bytes, shape.down_at, routed.slots_in(mine.table), blocks,
        shared.data, _scales(shared), shared.shape.down_at, shared_blocks, uses,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks, valid, shared_valid, parts, shape.hidden,
        UNITS=-(-blocks // 8), SHARED_UNITS=-(-shared_blocks // 8), ROWS=cut.rows, DOWN=shape.down.id,
        SHARED_DOWN=shared.shape.down.id, EVEN=blocks % 8 == 0 and valid >= blocks,
        SHARED_EVEN=shared_blocks % 8 == 0 and shared_valid >= shared_blocks, SCALED=mine.scales is not None,
        SHARED_SCALED=shared.scales is not None, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.rows // 4,
        **to.options,
    )  # fmt: skip
    return parts


def _scales(slots: Slots) -> torch.Tensor:
    return slots.scales if slots.scales is not None else slots.table
