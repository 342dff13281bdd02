"""Rows of an expert's gate and up times one column, in lanes that have rows of both or of either (single.py)."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import stack
from .blocks import fetch_blocks
from .kinds import number_bytes
from .products import fetch_pieces
from .single import fetch_single, meet_single, no_sums, single_columns, single_tree
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
    gate, apart, rows, blocks, top, x, token,
    UNITS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """What `gate_and_up` gives, if up lies `apart` bytes after gate and is of its type: a row of each has own lanes.

    STEP units are on their way at first; each is followed by the one STEP after it once it has met the column. Left
    alone, the assembler would issue a load only where its words are wanted.
    """
    n = tl.arange(0, 2 * TILE)
    row = tl.minimum(top + n % TILE, rows - 1)
    mine = gate + (n // TILE * apart)[None, :, None]
    raws = ()
    for i in tl.static_range(STEP):
        raws = raws + (fetch_rows(mine, rows, blocks, row, i, TYPE, EVEN),)
    wait(OVERLAP)
    release(OVERLAP)
    keep_order(FORM)
    sums = no_sums(1, 2 * TILE, TYPE)
    for first in range(0, UNITS - STEP, STEP):
        following = ()
        for i in tl.static_range(STEP):
            units = single_columns(x, token, first + i, 1, 2 * TILE, TYPE, EVEN)
            sums = meet_single(sums, ((raws[i],),), units, token, TYPE, FORM)
            following = following + (fetch_rows(mine, rows, blocks, row, first + STEP + i, TYPE, EVEN),)
            keep_order(FORM)
        raws = following
    for i in tl.static_range(STEP):
        units = single_columns(x, token, UNITS - STEP + i, 1, 2 * TILE, TYPE, EVEN)
        sums = meet_single(sums, ((raws[i],),), units, token, TYPE, FORM)
    return tl.split(tl.trans(tl.reshape(single_tree(sums[0], 2 * TILE), [2, TILE])))
