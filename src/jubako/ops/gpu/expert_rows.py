"""Rows of an expert's gate and up times one column, in lanes that have rows of both or of either (single.py)."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import stack
from .blocks import fetch_blocks
from .kinds import number_bytes, wants_sums
from .products import fetch_pieces
from .room import found, leave, moved
from .single import fetch_single, meet_single, no_sums, single_columns, single_tree
from .staged import fetch_column, leave_column, staged_column
from .target import release, wait


@triton.jit
def keep_order(FORM: tl.constexpr):
    """Loads written before this are issued before those written after it: the assembler moves none across it."""
    if FORM == 1:
        tl.inline_asm_elementwise("bar.warp.sync -1; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def fetch_rows(base, rows, blocks, row, unit, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """A unit of rows `row` [n] on its way. base: each row's own matrix [1, n, 1]."""
    j = tl.arange(0, 8)[:, None, None]
    if number_bytes(TYPE) > 0:
        return fetch_pieces(base, blocks, row[None, :, None], j, unit, TYPE)
    else:
        return fetch_blocks(base, rows, blocks, row[None, :, None], j, unit, TYPE, EVEN, True)


@triton.jit
def in_order(sums, ROWS: tl.constexpr):
    """Sums over the units of groups of ROWS rows, one group after the other: float32 [groups · ROWS]."""
    GROUPS: tl.constexpr = len(sums)
    groups = ()
    for i in tl.static_range(GROUPS):
        groups = groups + (single_tree(sums[i], ROWS),)
    return tl.reshape(stack(groups, ROWS), [GROUPS * ROWS])


@triton.jit
def gate_and_up(
    gate, up, rows, blocks, top, x, token,
    UNITS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, EACH: tl.constexpr, GATE: tl.constexpr,
    UP: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """TILE rows of gate and of up from `top` on times a column, float32 [TILE] each: lanes have EACH rows of both.

    STEP units of each are on their way while STEP others meet the column.
    """
    ROWS: tl.constexpr = TILE // EACH
    g = no_sums(EACH, ROWS, GATE)
    u = no_sums(EACH, ROWS, UP)
    of_gate = fetch_single(gate, rows, blocks, top, 0, STEP, ROWS, EACH, GATE, EVEN)
    of_up = fetch_single(up, rows, blocks, top, 0, STEP, ROWS, EACH, UP, EVEN)
    wait(OVERLAP)
    release(OVERLAP)
    if STEP == UNITS:
        g = meet_single(g, of_gate, single_columns(x, token, 0, STEP, ROWS, GATE, EVEN), token, GATE, FORM)
        u = meet_single(u, of_up, single_columns(x, token, 0, STEP, ROWS, UP, EVEN), token, UP, FORM)
    else:
        for first in range(0, UNITS, STEP):
            ahead = tl.minimum(first + STEP, UNITS - STEP)
            next_gate = fetch_single(gate, rows, blocks, top, ahead, STEP, ROWS, EACH, GATE, EVEN)
            next_up = fetch_single(up, rows, blocks, top, ahead, STEP, ROWS, EACH, UP, EVEN)
            units = single_columns(x, token, first, STEP, ROWS, GATE, EVEN)
            g = meet_single(g, of_gate, units, token, GATE, FORM)
            if GATE != UP:
                units = single_columns(x, token, first, STEP, ROWS, UP, EVEN)
            u = meet_single(u, of_up, units, token, UP, FORM)
            of_gate = next_gate
            of_up = next_up
    return in_order(g, ROWS), in_order(u, ROWS)


@triton.jit
def side_by_side(
    gate, apart, rows, blocks, top, x, token, room,
    UNITS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """What `gate_and_up` gives, if up lies `apart` bytes after gate and is of its type: a row of each has own lanes.

    STEP units are on their way at first; each is followed by the one STEP after it once it has met the column, which
    lies in the room behind 2·TILE sums. Left alone, the assembler would issue a load only where its words are wanted.
    """
    n = tl.arange(0, 2 * TILE)
    row = tl.minimum(top + n % TILE, rows - 1)
    mine = gate + (n // TILE * apart)[None, :, None]
    raws = ()
    for i in tl.static_range(STEP):
        raws = raws + (fetch_rows(mine, rows, blocks, row, i, TYPE, EVEN),)
    wait(OVERLAP)
    release(OVERLAP)
    column = lay_out(room, 2 * TILE, x, token, UNITS * 8, TYPE, FORM)
    keep_order(FORM)
    sums = no_sums(1, 2 * TILE, TYPE)
    for u in tl.static_range(UNITS):
        unit = unit_of(column, x, token, u, UNITS * 8, 2 * TILE, TYPE, EVEN, FORM)
        sums = meet_single(sums, ((raws[u],),), (unit,), token, TYPE, FORM)
        if u + STEP < UNITS:
            raws = raws + (fetch_rows(mine, rows, blocks, row, u + STEP, TYPE, EVEN),)
            keep_order(FORM)
    leave(room, n, single_tree(sums[0], 2 * TILE), n >= 0, FORM)
    return by_first_warp(room, TILE, FORM)


@triton.jit
def lay_out(room, at, x, token, PADDED: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """A token's column from words `at` of a room on: where it begins. Plain numbers are left where they are."""
    if number_bytes(TYPE) > 0:
        return room
    else:
        column = moved(room, at, FORM)
        SUMS: tl.constexpr = wants_sums(TYPE)
        return leave_column(column, fetch_column(x, token, PADDED, SUMS), PADDED, SUMS, FORM)


@triton.jit
def unit_of(
    column, x, token, unit, PADDED: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """A unit of the column that `lay_out` has laid out, for ROWS rows."""
    if number_bytes(TYPE) > 0:
        return single_columns(x, token, unit, 1, ROWS, TYPE, EVEN)[0]
    else:
        return staged_column(column, tl.zeros([1, ROWS, 1], tl.int32), unit, PADDED, wants_sums(TYPE), FORM)


@triton.jit
def by_first_warp(room, TILE: tl.constexpr, FORM: tl.constexpr):
    """Sums of TILE rows of gate and of up that all lanes have left in a room: float32 [TILE] each. Of 32 rows the first
    warp alone gets them and goes on: the others would take their turns from programs that still read. No barrier may
    follow."""
    tl.debug_barrier()
    if TILE == 32:  # a warp's lanes
        first_warp(FORM)
    i = tl.arange(0, TILE)
    return found(room, i, FORM), found(room, TILE + i, FORM)


@triton.jit
def first_warp(FORM: tl.constexpr):
    """Only a program's first warp goes on."""
    if FORM == 1:
        tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.gt.u32 p, t, 31; @p exit; mov.b32 $0, 0;}", "=r", [],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
