"""The experts' products for up to 16 tokens, in two launches, with the bits of csrc/experts.cpp.

A *use* is one expert for one token: use token·k + rank for the routed ones, then tokens·k + token for the shared one.
    gate_up   a program makes a tile of hidden values of one use and quantises it, as the down product reads it
    down      a program makes some rows of one use; its weights are on their way before the hidden values are there
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, store_blocks
from .cuts import divisor
from .expert_few_bits import AT_ONCE, LANE_ROWS, four_rows
from .expert_rows import gate_and_up, side_by_side
from .hand_over import hand_over
from .kinds import wants_sums
from .mathfun import silu
from .planar import LAYOUTS
from .room import elsewhere, own_room
from .single import fetch_single, meet_single, no_sums, single_columns, single_tree
from .slots import Slots
from .staged import column_words
from .target import interpreted, release, target, wait

if TYPE_CHECKING:
    from .experts import Experts, Routed


@triton.jit
def hidden_tile(
    gate, up_at, scales, rows, blocks, tile, x, token, given, use, to, room,
    UNITS: tl.constexpr, STEP: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, APART: tl.constexpr, FOUR: tl.constexpr, TILE: tl.constexpr, EACH: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """silu(gate)·up of TILE rows of one expert for one token, quantised into use `use` of `to`."""
    top = tile * TILE
    if FOUR and GATE == UP:
        a, b = four_rows(
            gate, up_at, rows, blocks, top, x, token, given, room, UNITS, STEP, TILE, GATE, EVEN, FORM, OVERLAP
        )
    elif APART and GATE == UP:
        a, b = side_by_side(
            gate, up_at, rows, blocks, top, x, token, room, UNITS, STEP, TILE, GATE, EVEN, FORM, OVERLAP
        )
    else:
        up = gate + up_at
        a, b = gate_and_up(
            gate, up, rows, blocks, top, x, token, UNITS, STEP, TILE, EACH, GATE, UP, EVEN, FORM, OVERLAP
        )
    if SCALED:
        a *= tl.load(scales)
        b *= tl.load(scales + 1)
    h = tl.where(top + tl.arange(0, TILE) < rows, silu(a, FORM) * b, 0.0)
    q, d, s, numbers, width = to
    COUNT: tl.constexpr = TILE // 32
    if APART and GATE == UP:
        block = tile * COUNT + tl.arange(0, COUNT)[:, None]
        hand_over(tl.reshape(h, [COUNT, 32]), use + block * 0, block, block >= 0, width, q, d, s, numbers, False, FORM)
    else:
        store_blocks(tl.reshape(h, [COUNT, 32]), use, tile * COUNT, width, q, d, s, numbers, COUNT, False)


@triton.jit
def gate_up_kernel(
    pool, pool_scales, slot_bytes, up_at: tl.constexpr, slots, rows: tl.constexpr,
    shared, shared_scales, shared_up_at: tl.constexpr, shared_rows: tl.constexpr, blocks: tl.constexpr,
    uses, q, d, s, numbers, x_blocks: tl.constexpr, x_valid: tl.constexpr,
    hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks: tl.constexpr, rooms,
    UNITS: tl.constexpr, STEP: tl.constexpr, SHARED_STEP: tl.constexpr, GATE: tl.constexpr,
    UP: tl.constexpr, SHARED_GATE: tl.constexpr, SHARED_UP: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    SHARED_SCALED: tl.constexpr, APART: tl.constexpr, FOUR: tl.constexpr, AT_ONCE: tl.constexpr, TILE: tl.constexpr,
    EACH: tl.constexpr, CHOSEN: tl.constexpr, WORDS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, use): the shared expert's uses come first, and need not wait to fetch weights.

    Sizes are known to the compiler: a lane has few addresses then, and planes lie at fixed distances.

    `down_kernel` may start once all programs know that what precedes this launch is done.
    """
    tile = tl.program_id(0)
    tokens = tl.num_programs(1) - uses
    use = tl.program_id(1) - tokens
    x = (q, d, s, numbers, x_blocks, x_valid)
    to = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks)
    room = 0
    if WORDS > 0:
        room = own_room(rooms, tl.program_id(1) * tl.num_programs(0) + tile, WORDS, FORM)
    if use < 0:
        if tile * TILE < shared_rows:
            hidden_tile(
                shared, shared_up_at, shared_scales, shared_rows, blocks, tile, x, use + tokens, (),
                use + tokens + uses, to, room, UNITS, SHARED_STEP, SHARED_GATE, SHARED_UP, EVEN, SHARED_SCALED,
                APART, FOUR, TILE, EACH, FORM, OVERLAP,
            )  # fmt: skip
        else:
            wait(OVERLAP)
    else:
        wait(OVERLAP)
        release(OVERLAP)
        if tile * TILE < rows:
            slot = tl.load(slots + use)
            given = ()
            if FOUR and GATE == UP:
                given = single_columns(x, use // CHOSEN, 0, AT_ONCE, TILE // 2, GATE, EVEN)
            if slot >= 0:
                base = pool + slot.to(tl.int64) * slot_bytes
                hidden_tile(
                    base, up_at, pool_scales + slot * 3, rows, blocks, tile, x, use // CHOSEN, given, use, to,
                    room, UNITS, STEP, GATE, UP, EVEN, SCALED, APART, FOUR, TILE, EACH, FORM, False,
                )  # fmt: skip


@triton.jit
def output_rows(
    down, scale, rows, blocks, top, x, use, parts,
    UNITS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """GROUPS·ROWS rows from `top` on of one expert's output for one use, into parts [use]."""
    raws = fetch_single(down, rows, blocks, top, 0, UNITS, ROWS, GROUPS, TYPE, EVEN)
    wait(OVERLAP)
    units = single_columns(x, use, 0, UNITS, ROWS, TYPE, EVEN)
    sums = meet_single(no_sums(GROUPS, ROWS, TYPE), raws, units, use, TYPE, FORM)
    for g in tl.static_range(GROUPS):
        y = single_tree(sums[g], ROWS)
        if SCALED:
            y *= tl.load(scale)
        number = top + g * ROWS + tl.arange(0, ROWS)
        tl.store(parts + use * rows + number, y, mask=number < rows)


@triton.jit
def down_kernel(
    pool, pool_scales, slot_bytes, down_at, slots, blocks,
    shared, shared_scales, shared_down_at, shared_blocks, uses,
    hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid, shared_valid, parts, hidden,
    UNITS: tl.constexpr, SHARED_UNITS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, DOWN: tl.constexpr,
    SHARED_DOWN: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, SCALED: tl.constexpr,
    SHARED_SCALED: tl.constexpr, EARLY: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, use): GROUPS·ROWS rows of the output of one use; those of the shared expert come first.

    EARLY: slots and weights are those that `gate_up_kernel` has read, so they need not wait for its end; past the first
    level cache, which may hold an older layer's slots.
    """
    release(OVERLAP)
    if not EARLY:
        wait(OVERLAP)
    top = tl.program_id(0) * ROWS * GROUPS
    tokens = tl.num_programs(1) - uses
    use = tl.program_id(1) - tokens
    if use < 0:
        x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, shared_valid)
        output_rows(
            shared + shared_down_at, shared_scales + 2, hidden, shared_blocks, top, x, use + tokens + uses, parts,
            SHARED_UNITS, ROWS, GROUPS, SHARED_DOWN, SHARED_EVEN, SHARED_SCALED, FORM, OVERLAP,
        )  # fmt: skip
    else:
        x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid)
        slot = tl.load(slots + use, volatile=True)
        if slot >= 0:
            output_rows(
                pool + slot.to(tl.int64) * slot_bytes + down_at, pool_scales + slot * 3 + 2, hidden, blocks, top,
                x, use, parts, UNITS, ROWS, GROUPS, DOWN, EVEN, SCALED, FORM, OVERLAP,
            )  # fmt: skip
        else:
            wait(OVERLAP)
            number = top + tl.arange(0, ROWS * GROUPS)
            tl.store(parts + use * hidden + number, tl.zeros([ROWS * GROUPS], tl.float32), mask=number < hidden)


@dataclass(frozen=True)
class Cut:
    """apart: 32-bit words of a row that are fetched together, two units at least, where gate and up, if of one type,
    have lanes of their own (codes of one bit: expert_few_bits.py); 0 if they share lanes. Then words: of both on
    their way together, at most; shared: of the shared expert; each: rows of both that a lane has. tile: rows of a
    program, in blocks of 32; rows, groups: groups of rows of a program of the down product."""

    apart: int = 0
    words: int = 9
    shared: int = 18
    each: int = 1
    tile: int = 32
    rows: int = 16
    groups: int = 2

    def step(self, units: int, most: int, slots: Slots) -> int:
        """How many of a row's units are fetched together."""
        kinds = (slots.shape.gate, slots.shape.up)
        sizes = [LAYOUTS[kind.name].row_bytes(256) for kind in kinds]
        if self.apart and kinds[0] == kinds[1]:
            return divisor(units, AT_ONCE if self.in_fours(slots) else max(2, self.apart // -(-sizes[0] // 32)))
        return divisor(units, max(1, most // (sum(sizes) // 32)))

    def in_fours(self, slots: Slots) -> bool:
        """Whether a lane has LANE_ROWS rows."""
        return self.apart > 0 and slots.shape.gate == slots.shape.up and LAYOUTS[slots.shape.gate.name].widths == (1,)

    def words_of_room(self, padded: int, matrices: tuple[Slots, ...], four: bool) -> int:
        """Shared memory of a program of gate and up: for its sums, and a column of so many blocks. four: `in_fours`."""
        if not self.apart:
            return 0
        sums = any(wants_sums(slots.shape.gate.id) for slots in matrices)
        return 2 * self.tile + (0 if four else int(column_words(padded, sums)))

    def warps(self, four: bool) -> int:
        """Of a program of gate and up. four: `in_fours`."""
        if self.apart:
            return self.tile // (2 * LANE_ROWS if four else 2)
        return self.tile // (4 * self.each)


def usual_cut(tokens: int) -> Cut:
    """A single token leaves room for twice the lanes; with four, rows share what a lane reads of the column, and all
    programs find room at once, beside a shared expert of K-quants as well. The interpreter likes few large programs."""
    if interpreted():
        return Cut(tile=64, rows=256, groups=1, apart=10 if tokens == 1 else 0, words=1 << 20, shared=1 << 20)
    if tokens == 1:
        return Cut(apart=10)
    return Cut(each=2, shared=9) if tokens >= 4 else Cut()


def gate_up(layer: Experts, x: Quantised, routed: Routed, cut: Cut) -> Quantised:
    """Hidden values of all uses."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(x.d.device)
    tokens, chosen = routed.ids.shape
    height = max(shape.size, shared.shape.size)
    width = max(shape.down_cols, shared.shape.down_cols, height)
    hidden = room_for(tokens * chosen + tokens, -(-width // 256) * 256, False, x.d.device)
    blocks = -(-shape.hidden // 32)
    units = -(-blocks // 8)
    grid = (-(-height // cut.tile), tokens * chosen + tokens)
    four = cut.in_fours(mine)
    words = cut.words_of_room(units * 8, (mine, shared), four)
    gate_up_kernel[grid](
        mine.data, scales_of(mine), shape.bytes, shape.up_at, routed.slots_in(mine.table), shape.size,
        shared.data, scales_of(shared), shared.shape.up_at, shared.shape.size, blocks,
        tokens * chosen, x.q, x.d, x.s, x.x, x.blocks, x.valid,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks,
        elsewhere(to, grid[0] * grid[1], words, x.d.device),
        UNITS=units, STEP=cut.step(units, cut.words, mine), SHARED_STEP=cut.step(units, cut.shared, shared),
        GATE=shape.gate.id, UP=shape.up.id, SHARED_GATE=shared.shape.gate.id, SHARED_UP=shared.shape.up.id,
        EVEN=blocks % 8 == 0, SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None,
        APART=cut.apart > 0, FOUR=four, AT_ONCE=min(AT_ONCE, units), TILE=cut.tile,
        EACH=LANE_ROWS // 2 if four else cut.each, CHOSEN=chosen, WORDS=words, FORM=to.one_column, OVERLAP=to.overlap,
        num_warps=cut.warps(four), **to.options,
    )  # fmt: skip
    return hidden


def down(layer: Experts, hidden: Quantised, routed: Routed, cut: Cut) -> torch.Tensor:
    """Outputs [T·k + T, H] of all uses."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(hidden.d.device)
    uses, tokens = routed.ids.numel(), len(routed.ids)
    blocks, shared_blocks = -(-shape.down_cols // 32), -(-shared.shape.down_cols // 32)
    valid, shared_valid = -(-shape.size // 32), -(-shared.shape.size // 32)
    parts = torch.empty(uses + tokens, shape.hidden, device=hidden.d.device)
    down_kernel[(-(-shape.hidden // (cut.rows * cut.groups)), uses + tokens)](
        mine.data, scales_of(mine), shape.bytes, shape.down_at, routed.slots_in(mine.table), blocks,
        shared.data, scales_of(shared), shared.shape.down_at, shared_blocks, uses,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks, valid, shared_valid, parts, shape.hidden,
        UNITS=-(-blocks // 8), SHARED_UNITS=-(-shared_blocks // 8), ROWS=cut.rows, GROUPS=cut.groups,
        DOWN=shape.down.id, SHARED_DOWN=shared.shape.down.id, EVEN=blocks % 8 == 0 and valid >= blocks,
        SHARED_EVEN=shared_blocks % 8 == 0 and shared_valid >= shared_blocks, SCALED=mine.scales is not None,
        SHARED_SCALED=shared.scales is not None, EARLY=layer.away is None, FORM=to.one_column, OVERLAP=to.overlap,
        num_warps=cut.rows // 4, **to.options,
    )  # fmt: skip
    return parts


def scales_of(slots: Slots) -> torch.Tensor:
    """Factors of the products, or something in their place."""
    return slots.scales if slots.scales is not None else slots.table
