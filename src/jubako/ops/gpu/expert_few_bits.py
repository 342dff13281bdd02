"""Rows of an expert's gate and up times one column where codes have a bit each: lanes have four rows.

With so little to read it is the column that takes a launch's time, which each lane reads for itself: here for four rows
at once. It is asked for first; else its loads would wait behind the weights'. Codes are masked out where they lie, and
only one warp of a program makes its hidden values.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import factors
from .expert_rows import by_first_warp, fetch_rows, keep_order
from .integer import dot4
from .kinds import is_
from .products import step
from .room import leave
from .single import meet_single, no_sums, single_columns, single_tree
from .target import release, wait

LANE_ROWS = 4  # two of gate and two of up
AT_ONCE = 2  # units that are on their way together: of rows, and of the column before an expert's slot is known


@triton.jit
def dots_in_place(bit, x, FORM: tl.constexpr):
    """Σ code·q of lanes' blocks, twice: `bit` int32 [8, rows, 1] holds codes of one bit, which count two.

    Word i of a column meets the bits where they lie, so that they count 2^i; four sums are brought to the same, where
    eight words would have to be.
    """
    i = tl.arange(0, 4)[None, None, :]
    mask = 0x01010101 << i
    sums = dot4((bit >> 4) & mask, x[1], dot4(bit & mask, x[0], tl.zeros_like(x[0]), FORM), FORM)
    dot = tl.sum(sums << (4 - i), axis=2, keep_dims=True) >> 3
    return dot, dot


@triton.jit
def fetch_both(gate, apart, rows, blocks, top, unit, TILE: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """A unit of TILE rows of gate and of up from `top` on, on its way, in groups of TILE / 2: gate's, then up's."""
    ROWS: tl.constexpr = TILE // 2
    raws = ()
    for g in tl.static_range(4):
        row = tl.minimum(top + g % 2 * ROWS + tl.arange(0, ROWS), rows - 1)
        raws = raws + ((fetch_rows(gate + g // 2 * apart, rows, blocks, row, unit, TYPE, EVEN),),)
    return raws


@triton.jit
def meet_unit(sums, raws, unit, token, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The groups' partial sums (a tuple) after one unit more."""
    if is_(TYPE, "Q1_0"):
        after = ()
        for g in tl.static_range(len(sums)):
            dots = dots_in_place(raws[g][0][4], unit, FORM)
            after = after + (step(sums[g], dots, factors(raws[g][0], TYPE), unit, TYPE, FORM),)
        return after
    else:
        return meet_single(sums, raws, (unit,), token, TYPE, FORM)


@triton.jit
def four_rows(
    gate, apart, rows, blocks, top, x, token, given, room,
    UNITS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """What `expert_rows.side_by_side` gives; of 32 rows the first warp alone gets them and goes on. room: words.

    given: first units of the column (a tuple) that are on their way since before the rows were known.
    """
    ROWS: tl.constexpr = TILE // 2
    raws = ()
    for i in tl.static_range(STEP):
        raws = raws + (fetch_both(gate, apart, rows, blocks, top, i, TILE, TYPE, EVEN),)
    wait(OVERLAP)
    release(OVERLAP)
    keep_order(FORM)
    sums = no_sums(4, ROWS, TYPE)
    if len(given) > 0:
        for u in tl.static_range(UNITS):
            if u < len(given):  # noqa: SIM108
                unit = given[u]
            else:
                unit = single_columns(x, token, u, 1, ROWS, TYPE, EVEN)[0]
            sums = meet_unit(sums, raws[u], unit, token, TYPE, FORM)
            if u + STEP < UNITS:
                raws = raws + (fetch_both(gate, apart, rows, blocks, top, u + STEP, TILE, TYPE, EVEN),)
                keep_order(FORM)
    else:
        for first in range(0, UNITS - STEP, STEP):
            following = ()
            for i in tl.static_range(STEP):
                unit = single_columns(x, token, first + i, 1, ROWS, TYPE, EVEN)[0]
                sums = meet_unit(sums, raws[i], unit, token, TYPE, FORM)
                following = following + (
                    fetch_both(gate, apart, rows, blocks, top, first + STEP + i, TILE, TYPE, EVEN),
                )
                keep_order(FORM)
            raws = following
        for i in tl.static_range(STEP):
            unit = single_columns(x, token, UNITS - STEP + i, 1, ROWS, TYPE, EVEN)[0]
            sums = meet_unit(sums, raws[i], unit, token, TYPE, FORM)
    n = tl.arange(0, ROWS)
    for g in tl.static_range(4):
        leave(room, g * ROWS + n, single_tree(sums[g], ROWS), n >= 0, FORM)
    return by_first_warp(room, TILE, FORM)
