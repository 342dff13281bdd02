"""The mixture of experts for a prompt: tiles of an expert's uses meet its weights, decoded on the way.

Factors are float16, sums float32. No half overflows: inputs are bounded by their norm or scaled; hidden values and
outputs are kept as sixteenths, held at a million. Nothing waits for the host: tiles are counted on the device, and the
launch has room for the most there can be.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .experts import Experts, Routed
from .hyper_prompt import HALF, PromptParts
from .operand import SCALE, UNIT, counting, number_at, operand
from .prompt import Halves, in_half
from .shared_prompt import shared_of_prompt
from .slots import Slots
from .target import interpreted, target
from .uses import Tiles, tiles_of


@dataclass(frozen=True)
class Cut:
    """Uses of a tile: `uses` and `more`, powers of two; rows of a program of gate and up, and of down; stages: units on
    their way at once, the one worked on among them."""

    uses: int
    more: int = 0
    rows: int = 64
    down_rows: int = 128
    warps: int = 4
    stages: int = 3
    registers: int | None = None  # of a thread, at most, so that more programs share a multiprocessor

    @property
    def tile(self) -> int:
        return self.uses + self.more


def usual_cut(uses: float, device: torch.device) -> Cut:
    """uses: of an expert, on average; where they are spread evenly most have one tile, or some. The interpreter likes
    few large programs."""
    if interpreted():
        return Cut(16, 0, 128, 256)
    if target(device).stages == 1:  # 64 KB of shared memory or little more
        return Cut(32 if uses > 12 else 16, down_rows=64, stages=1)
    if uses > 200 or 88 < uses <= 116:  # two programs share a multiprocessor, so there is no room for a third unit
        return Cut(128, stages=2)
    if uses * 1.2 > 64:
        return Cut(64, 32)
    tile = next(tile for tile in (16, 32, 64) if uses * 1.2 <= tile)
    return Cut(tile, down_rows=64, registers={32: 128, 64: 168}.get(tile) if target(device).overlap else None)


@triton.jit
def held_half(x):
    """x as float16, at the largest magnitude where it is larger."""
    return tl.minimum(tl.maximum(x, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def some_uses(uses, begin, end, COUNT: tl.constexpr):
    """COUNT uses from place `begin` on, beyond `end` the last one before it again; and which are no such repeats."""
    place = begin + tl.arange(0, COUNT)
    return tl.load(uses + tl.minimum(place, end - 1)), place < end


@triton.jit
def rows_of(x, row, stride):
    """Where 128 numbers of each row of x begin."""
    return x + row.to(tl.int64)[:, None] * stride + tl.arange(0, 128)[None, :]


@triton.jit
def store_hidden(
    g, u, use, there, live, to, factor, chosen, pool_scales, slot, hidden, stride,
    FACTOR: tl.constexpr, SCALED: tl.constexpr, SCALE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """HALF times silu(g)·u [rows, uses], zeros where rows are not live, to hidden [use, to]."""
    scale = 1.0 / SCALE
    if FACTOR:
        scale *= tl.load(factor + use // chosen)[None, :]
    g *= scale
    u *= scale
    if SCALED:
        g *= tl.load(pool_scales + slot * 3)
        u *= tl.load(pool_scales + slot * 3 + 1)
    h = tl.where(live[:, None], g * tl.sigmoid(g) * u, 0.0)
    at = hidden + use.to(tl.int64)[:, None] * stride + to[None, :]
    tl.store(at, held_half(tl.trans(h) * HALF), mask=there[:, None] & (to < stride)[None, :])


@triton.jit
def gate_up_prompt_kernel(
    pool, pool_scales, slot_bytes, up_at, table, rows, uses, expert, first, last, chosen, x, x_stride,
    factor, hidden, hidden_stride, counting,
    BLOCKS: tl.constexpr, UNITS: tl.constexpr, TILE: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr,
    GATE: tl.constexpr, UP: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, FACTOR: tl.constexpr,
    SCALE: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Program (rows, tile): silu(gate)·up of ROWS rows for the tile's uses, into hidden [use] in `operand`'s order."""
    tile = tl.program_id(1)
    id = tl.load(expert + tile)
    slot = tl.load(table + tl.maximum(id, 0))
    if (id >= 0) & (slot >= 0):
        begin, end = tl.load(first + tile), tl.load(last + tile)
        use, there = some_uses(uses, begin, end, TILE)
        to = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        number = number_at(to)
        row = tl.load(counting + tl.minimum(number, rows - 1)[None, :, None])
        j = tl.load(counting + tl.arange(0, 4)[:, None, None])
        pair = tl.load(counting + tl.arange(0, 2)[None, None, :])
        base = pool + slot.to(tl.int64) * slot_bytes
        of_x = rows_of(x, use // chosen, x_stride)
        g = tl.zeros([ROWS, TILE], tl.float32)
        u = tl.zeros([ROWS, TILE], tl.float32)
        if MORE > 0:
            other, here = some_uses(uses, begin + TILE, end, MORE)
            of_other = rows_of(x, other // chosen, x_stride)
            g_more = tl.zeros([ROWS, MORE], tl.float32)
            u_more = tl.zeros([ROWS, MORE], tl.float32)
        for unit in tl.range(0, UNITS, num_stages=STAGES):
            y = tl.trans(tl.load(of_x + unit * 128))
            if MORE > 0:
                y_more = tl.trans(tl.load(of_other + unit * 128))
            w = operand(base, rows, BLOCKS, row, unit, j, pair, counting, ROWS, GATE, EVEN, SCALE, FORM)
            g = tl.dot(w, y, acc=g)
            if MORE > 0:
                g_more = tl.dot(w, y_more, acc=g_more)
            w = operand(base + up_at, rows, BLOCKS, row, unit, j, pair, counting, ROWS, UP, EVEN, SCALE, FORM)
            u = tl.dot(w, y, acc=u)
            if MORE > 0:
                u_more = tl.dot(w, y_more, acc=u_more)
        store_hidden(
            g, u, use, there, number < rows, to, factor, chosen, pool_scales, slot, hidden, hidden_stride,
            FACTOR, SCALED, SCALE, HALF,
        )  # fmt: skip
        if MORE > 0:
            store_hidden(
                g_more, u_more, other, here, number < rows, to, factor, chosen, pool_scales, slot, hidden,
                hidden_stride, FACTOR, SCALED, SCALE, HALF,
            )  # fmt: skip


@triton.jit
def store_parts(
    y, use, there, number, rows, pool_scales, slot, parts, SCALED: tl.constexpr, SCALE: tl.constexpr
):  # fmt: skip
    """Outputs y [rows, uses] to parts [use, number]."""
    y *= 1.0 / SCALE
    if SCALED:
        y *= tl.load(pool_scales + slot * 3 + 2)
    to = parts + use.to(tl.int64)[:, None] * rows + number[None, :]
    tl.store(to, held_half(tl.trans(y)), mask=there[:, None] & (number < rows)[None, :])


@triton.jit
def down_prompt_kernel(
    pool, pool_scales, slot_bytes, down_at, table, rows, uses, expert, first, last, hidden,
    hidden_stride, parts, counting,
    BLOCKS: tl.constexpr, UNITS: tl.constexpr, TILE: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr,
    DOWN: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, SCALE: tl.constexpr, STAGES: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """Program (rows, tile): ROWS rows of the outputs of the tile's uses, times HALF as the hidden values are."""
    tile = tl.program_id(1)
    id = tl.load(expert + tile)
    slot = tl.load(table + tl.maximum(id, 0))
    if (id >= 0) & (slot >= 0):
        begin, end = tl.load(first + tile), tl.load(last + tile)
        use, there = some_uses(uses, begin, end, TILE)
        number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        row = tl.load(counting + tl.minimum(number, rows - 1)[None, :, None])
        j = tl.load(counting + tl.arange(0, 4)[:, None, None])
        pair = tl.load(counting + tl.arange(0, 2)[None, None, :])
        base = pool + slot.to(tl.int64) * slot_bytes + down_at
        of_x = rows_of(hidden, use, hidden_stride)
        y = tl.zeros([ROWS, TILE], tl.float32)
        if MORE > 0:
            other, here = some_uses(uses, begin + TILE, end, MORE)
            of_other = rows_of(hidden, other, hidden_stride)
            y_more = tl.zeros([ROWS, MORE], tl.float32)
        for unit in tl.range(0, UNITS, num_stages=STAGES):
            h = tl.trans(tl.load(of_x + unit * 128))
            if MORE > 0:
                h_more = tl.trans(tl.load(of_other + unit * 128))
            w = operand(base, rows, BLOCKS, row, unit, j, pair, counting, ROWS, DOWN, EVEN, SCALE, FORM)
            y = tl.dot(w, h, acc=y)
            if MORE > 0:
                y_more = tl.dot(w, h_more, acc=y_more)
        store_parts(y, use, there, number, rows, pool_scales, slot, parts, SCALED, SCALE)
        if MORE > 0:
            store_parts(y_more, other, here, number, rows, pool_scales, slot, parts, SCALED, SCALE)


@triton.jit
def order_kernel(x, x_stride, out, out_stride, width, SIZE: tl.constexpr):
    """Program t: a row in the order of `operand`, zeros up to whole units."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, SIZE)
    k = number_at(place)
    value = tl.load(x + token * x_stride + k, mask=k < width, other=0.0)
    tl.store(out + token * out_stride + place, value, mask=place < out_stride)


def in_order(x: torch.Tensor) -> torch.Tensor:
    """Halves [T, K] in the order of `operand`: [T, K up to whole units]."""
    tokens, width = x.shape
    out = torch.empty(tokens, -(-width // UNIT) * UNIT, dtype=torch.float16, device=x.device)
    order_kernel[(tokens,)](
        x, x.stride(0), out, out.stride(0), width, SIZE=triton.next_power_of_2(out.shape[1]), num_warps=4
    )
    return out


def parts_of_prompt(layer: Experts, x: torch.Tensor | Halves, routed: Routed, cut: Cut | None = None) -> PromptParts:
    """Outputs of all uses, and of the shared expert for every token of x [T, H]."""
    read = x if isinstance(x, Halves) else in_half(x)
    tokens, chosen = routed.ids.shape
    cut = cut or usual_cut(tokens * chosen / layer.count, read.x.device)
    wide = Halves(in_order(read.x), read.factor)
    tiles, outputs, away = tiles_of(routed.ids, layer.count, cut.tile), None, layer.away
    for slots in [layer.routed] if away is None or away.stream is None else away.stream.turns(away.layer):
        outputs = outputs_of(slots, wide, tiles, chosen, cut, outputs)
    assert outputs is not None
    return PromptParts(outputs, shared_of_prompt(layer.shared, read), routed.weights, routed.share)


def outputs_of(
    slots: Slots, x: Halves, tiles: Tiles, chosen: int, cut: Cut, outputs: torch.Tensor | None = None
) -> torch.Tensor:
    """HALF times the outputs [uses, H] of experts, found by their table, for the uses in the tiles.

    x is in order; use u reads row u // chosen of it. outputs: where the table lacks some experts, those of others.
    """
    shape, device, uses = slots.shape, x.x.device, len(tiles.uses)
    form, indices, number = target(device).one_column, counting(device), len(tiles.expert)
    scales = slots.scales if slots.scales is not None else slots.table
    blocks, down_blocks = -(-shape.hidden // 32), -(-shape.down_cols // 32)
    units, down_units = -(-blocks // 4), -(-down_blocks // 4)
    hidden = torch.empty(uses, down_units * UNIT, dtype=torch.float16, device=device)
    if outputs is None:
        outputs = torch.empty(uses, shape.hidden, dtype=torch.float16, device=device)
    options = {} if cut.registers is None else {"maxnreg": cut.registers}
    gate_up_prompt_kernel[(-(-hidden.shape[1] // cut.rows), number)](
        slots.data, scales, shape.bytes, shape.up_at, slots.table, shape.size, tiles.uses, tiles.expert,
        tiles.first, tiles.last, chosen, x.x, x.x.stride(0), x.factor if x.factor is not None else x.x, hidden,
        hidden.stride(0), indices,
        BLOCKS=blocks, UNITS=units, TILE=cut.uses, MORE=cut.more, ROWS=cut.rows, GATE=shape.gate.id, UP=shape.up.id,
        EVEN=blocks % 4 == 0, SCALED=slots.scales is not None, FACTOR=x.factor is not None, SCALE=SCALE, HALF=HALF,
        STAGES=cut.stages, FORM=form, num_warps=cut.warps, **options,
    )  # fmt: skip
    down_prompt_kernel[(-(-shape.hidden // cut.down_rows), number)](
        slots.data, scales, shape.bytes, shape.down_at, slots.table, shape.hidden, tiles.uses, tiles.expert,
        tiles.first, tiles.last, hidden, hidden.stride(0), outputs, indices,
        BLOCKS=down_blocks, UNITS=down_units, TILE=cut.uses, MORE=cut.more, ROWS=cut.down_rows, DOWN=shape.down.id,
        EVEN=down_blocks % 4 == 0, SCALED=slots.scales is not None, SCALE=SCALE, STAGES=cut.stages,
        FORM=form, num_warps=cut.warps,
    )  # fmt: skip
    return outputs
