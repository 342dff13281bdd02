"""The mixture of experts for a prompt: uses sorted by expert, tiles of them times weights decoded inside the kernel.

Sums are float32, factors bfloat16 (float32 in the interpreter): no half can overflow. Nothing waits for the host: tiles
are counted on the device, and the launch has room for the most there can be.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...quant import BlockType
from . import prompt
from .activation import Quantised
from .blocks import factors, fetch, unpack
from .embed import byte
from .experts import Experts, Parts, Routed
from .kinds import bias_of, minimum_of, number_bytes, plain_type, scales_of
from .products import fetch_numbers, plain
from .slots import Slots
from .target import interpreted, target

TILE = 128  # uses of an expert that meet its weights together


@dataclass(frozen=True, slots=True)
class Tiles:
    """uses int32 [T·k] sorted by expert; of each tile int32: its expert (-1: none), its first and last place there."""

    uses: torch.Tensor
    expert: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


def tiles_of(ids: torch.Tensor, experts: int) -> Tiles:
    """Tiles of uses of one expert each. ids int32 [T, k], all of them experts."""
    flat = ids.reshape(-1).long()
    uses = flat.argsort(stable=True).int()
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    ends, tile_ends = counts.cumsum(0), ((counts + TILE - 1) // TILE).cumsum(0)
    number = torch.arange(len(flat) // TILE + experts, device=ids.device)
    expert = torch.searchsorted(tile_ends, number, right=True)
    there = expert < experts
    held = expert.clamp_max(experts - 1)
    before = torch.where(held > 0, tile_ends[held - 1], 0)
    start = torch.where(held > 0, ends[held - 1], 0)
    first = start + (number - before) * TILE
    last = torch.minimum(ends[held], first + TILE)
    return Tiles(uses, torch.where(there, expert, -1).int(), first.int(), last.int())


@triton.jit
def half_unit(w, scale, half: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr, KIND: tl.constexpr):
    """Half of each block of a unit as numbers: [rows, 128], number 16j + i of block j."""
    factor, s0, s1, offset, m0, m1 = scale
    f = factor
    if scales_of(TYPE) == 1:
        f = factor * (s1 if half else s0)
    elif scales_of(TYPE) == 2:
        f = s1 if half else s0
    low = offset
    if minimum_of(TYPE) == 2:
        low = offset * (m1 if half else m0)
    values = ()
    for b in tl.static_range(4):
        value = f * byte(w, b, bias_of(TYPE), bias_of(TYPE) == 0)
        if minimum_of(TYPE) > 0:
            value += low
        values = values + (value.to(KIND),)
    every = tl.join(tl.join(values[0], values[2]), tl.join(values[1], values[3]))
    return tl.reshape(tl.permute(every, (1, 0, 2, 3, 4)), [ROWS, 128])


@triton.jit
def fetch_unit(base, rows, blocks, row, unit, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """A unit of a matrix on its way, of any type."""
    if number_bytes(TYPE) > 0:
        return fetch_numbers(base, blocks, row, unit, TYPE)
    else:
        return fetch(base, rows, blocks, row, unit, TYPE, EVEN)


@triton.jit
def times_unit(
    sums, raw, unit, x, live, ROWS: tl.constexpr, UNITS: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """sums [uses, rows] and a unit's products more. x: pointers to the uses' rows [uses, 1], in the type's order."""
    KIND: tl.constexpr = x.dtype.element_ty
    if number_bytes(TYPE) > 0:
        pieces = plain(raw, TYPE)
        for v in tl.static_range(8):
            w = tl.reshape(tl.permute(pieces[v].to(KIND), (1, 0, 2)), [ROWS, 32])
            y = tl.load(x + (unit * 256 + v * 32 + tl.arange(0, 32)[None, :]), mask=live, other=0.0)
            sums = tl.dot(y, tl.trans(w), acc=sums, input_precision="ieee")
    else:
        w = unpack(raw, TYPE, FORM)
        scale = factors(raw, TYPE)
        for half in tl.static_range(2):
            y = tl.load(x + (half * UNITS * 128 + unit * 128 + tl.arange(0, 128)[None, :]), mask=live, other=0.0)
            part = half_unit(w[half], scale, half, ROWS, TYPE, KIND)
            sums = tl.dot(y, tl.trans(part), acc=sums, input_precision="ieee")
    return sums


@triton.jit
def times_units(
    g, u, of_g, of_u, unit, x, live, ROWS: tl.constexpr, UNITS: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """`times_unit` of two matrices of one type, which share what is loaded of x."""
    KIND: tl.constexpr = x.dtype.element_ty
    w = unpack(of_g, TYPE, FORM)
    v = unpack(of_u, TYPE, FORM)
    scale_g = factors(of_g, TYPE)
    scale_u = factors(of_u, TYPE)
    for half in tl.static_range(2):
        y = tl.load(x + (half * UNITS * 128 + unit * 128 + tl.arange(0, 128)[None, :]), mask=live, other=0.0)
        a = half_unit(w[half], scale_g, half, ROWS, TYPE, KIND)
        g = tl.dot(y, tl.trans(a), acc=g, input_precision="ieee")
        b = half_unit(v[half], scale_u, half, ROWS, TYPE, KIND)
        u = tl.dot(y, tl.trans(b), acc=u, input_precision="ieee")
    return g, u


@triton.jit
def gate_up_prompt_kernel(
    pool, pool_scales, slot_bytes, up_at, table, rows, blocks, uses, expert, first, last, chosen, x_gate, x_up,
    x_stride, hidden, hidden_stride,
    UNITS: tl.constexpr, DOWN_UNITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, GATE: tl.constexpr,
    UP: tl.constexpr, DOWN: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Program (rows, tile): silu(gate)·up of ROWS rows for the tile's uses, into hidden [use]."""
    tile = tl.program_id(1)
    id = tl.load(expert + tile)
    if id >= 0:
        place = tl.load(first + tile) + tl.arange(0, TILE)
        there = place < tl.load(last + tile)
        use = tl.load(uses + place, mask=there, other=0)
        number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        row = tl.minimum(number, rows - 1)[None, :, None]
        slot = tl.load(table + id)
        base = pool + slot.to(tl.int64) * slot_bytes
        of_x = (use // chosen).to(tl.int64)[:, None] * x_stride
        live = there[:, None]
        g = tl.zeros([TILE, ROWS], tl.float32)
        u = tl.zeros([TILE, ROWS], tl.float32)
        of_gate = fetch_unit(base, rows, blocks, row, 0, GATE, EVEN)
        of_up = fetch_unit(base + up_at, rows, blocks, row, 0, UP, EVEN)
        for unit in range(0, UNITS):
            ahead = tl.minimum(unit + 1, UNITS - 1)
            next_gate = fetch_unit(base, rows, blocks, row, ahead, GATE, EVEN)
            next_up = fetch_unit(base + up_at, rows, blocks, row, ahead, UP, EVEN)
            if GATE == UP and number_bytes(GATE) == 0:
                g, u = times_units(g, u, of_gate, of_up, unit, x_gate + of_x, live, ROWS, UNITS, GATE, FORM)
            else:
                g = times_unit(g, of_gate, unit, x_gate + of_x, live, ROWS, UNITS, GATE, FORM)
                u = times_unit(u, of_up, unit, x_up + of_x, live, ROWS, UNITS, UP, FORM)
            of_gate, of_up = next_gate, next_up
        if SCALED:
            g *= tl.load(pool_scales + slot * 3)
            u *= tl.load(pool_scales + slot * 3 + 1)
        h = g * tl.sigmoid(g) * u
        place = number
        if number_bytes(DOWN) == 0:
            place = (number // 16 % 2) * DOWN_UNITS * 128 + number // 32 * 16 + number % 16
        to = hidden + use.to(tl.int64)[:, None] * hidden_stride + place[None, :]
        tl.store(to, h.to(hidden.dtype.element_ty), mask=live & (number < rows)[None, :])


@triton.jit
def down_prompt_kernel(
    pool, pool_scales, slot_bytes, down_at, table, rows, blocks, uses, expert, first, last, hidden,
    hidden_stride, parts,
    UNITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, DOWN: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Program (rows, tile): ROWS rows of the outputs of the tile's uses, into parts [use]."""
    tile = tl.program_id(1)
    id = tl.load(expert + tile)
    if id >= 0:
        place = tl.load(first + tile) + tl.arange(0, TILE)
        there = place < tl.load(last + tile)
        use = tl.load(uses + place, mask=there, other=0)
        number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        row = tl.minimum(number, rows - 1)[None, :, None]
        slot = tl.load(table + id)
        base = pool + slot.to(tl.int64) * slot_bytes + down_at
        of_x = hidden + use.to(tl.int64)[:, None] * hidden_stride
        y = tl.zeros([TILE, ROWS], tl.float32)
        raw = fetch_unit(base, rows, blocks, row, 0, DOWN, EVEN)
        for unit in range(0, UNITS):
            ahead = fetch_unit(base, rows, blocks, row, tl.minimum(unit + 1, UNITS - 1), DOWN, EVEN)
            y = times_unit(y, raw, unit, of_x, there[:, None], ROWS, UNITS, DOWN, FORM)
            raw = ahead
        if SCALED:
            y *= tl.load(pool_scales + slot * 3 + 2)
        to = parts + use.to(tl.int64)[:, None] * rows + number[None, :]
        tl.store(to, y, mask=there[:, None] & (number < rows)[None, :])


def parts_of_prompt(layer: Experts, x: torch.Tensor | Quantised, routed: Routed) -> Parts:
    """Outputs [T·k + T, H] of all uses, as `experts.parts_of` gives them."""
    numbers = x.plain() if isinstance(x, Quantised) else x
    shape, mine, to = layer.routed.shape, layer.routed, target(numbers.device)
    tokens, chosen = routed.ids.shape
    kind = torch.float32 if interpreted() else torch.bfloat16
    tiles = tiles_of(routed.ids, layer.count)
    count, scales = len(tiles.expert), mine.scales if mine.scales is not None else mine.table
    blocks, down_blocks = -(-shape.hidden // 32), -(-shape.down_cols // 32)
    units, down_units = -(-blocks // 8), -(-down_blocks // 8)
    x_gate = in_order(numbers, units, shape.gate, kind)
    x_up = x_gate if plain_type(shape.up.id) == plain_type(shape.gate.id) else in_order(numbers, units, shape.up, kind)
    hidden = torch.zeros(tokens * chosen, down_units * 256, dtype=kind, device=numbers.device)
    parts = torch.empty(tokens * chosen + tokens, shape.hidden, device=numbers.device)
    gate_up_prompt_kernel[(-(-shape.size // 64), count)](
        mine.data, scales, shape.bytes, shape.up_at, mine.table, shape.size, blocks, tiles.uses, tiles.expert,
        tiles.first, tiles.last, chosen, x_gate, x_up, x_gate.stride(0), hidden, hidden.stride(0),
        UNITS=units, DOWN_UNITS=down_units, TILE=TILE, ROWS=64, GATE=shape.gate.id, UP=shape.up.id,
        DOWN=shape.down.id, EVEN=blocks % 8 == 0, SCALED=mine.scales is not None, FORM=to.form, num_warps=8,
        num_stages=to.stages,
    )  # fmt: skip
    down_prompt_kernel[(-(-shape.hidden // 64), count)](
        mine.data, scales, shape.bytes, shape.down_at, mine.table, shape.hidden, down_blocks, tiles.uses,
        tiles.expert, tiles.first, tiles.last, hidden, hidden.stride(0), parts,
        UNITS=down_units, TILE=TILE, ROWS=64, DOWN=shape.down.id, EVEN=down_blocks % 8 == 0,
        SCALED=mine.scales is not None, FORM=to.form, num_warps=8, num_stages=to.stages,
    )  # fmt: skip
    shared_expert(layer.shared, numbers, parts[tokens * chosen :])
    return Parts(parts, routed)


def in_order(x: torch.Tensor, units: int, kind: BlockType, number: torch.dtype) -> torch.Tensor:
    """x [T, K] as a type's products read it, zeros up to whole units: for blocks the first halves of all come first."""
    padded = torch.nn.functional.pad(x, (0, units * 256 - x.shape[1])).to(number)
    if plain_type(kind.id):
        return padded
    return padded.view(len(x), -1, 2, 16).transpose(1, 2).reshape(len(x), -1)


def shared_expert(slots: Slots, x: torch.Tensor, out: torch.Tensor) -> None:
    """The expert in the only slot, for all tokens of x [T, H]: out [T, H]."""
    gate, up, low = slots.matrices(0)
    scaled = prompt.in_half(x)
    hidden = torch.nn.functional.silu(prompt.multiply_half(gate, scaled)).mul_(prompt.multiply_half(up, scaled))
    prompt.multiply(low, hidden, out)
