"""Sixteen rows of a matrix in tiles times up to four columns, of which warps take shares that follow each other.

Weights of the first rounds are on their way before the launch in front has ended, and all columns of a round before its
first product. A single column has the pairs of a unit in the places of columns (tile_column.py), a share a warp; more
columns have a warp for each pair of a share (tile_quants.py).
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .fixed import hold
from .kinds import has_width, scales_of
from .room import by_hand, found, leave
from .target import wait
from .tile_column import column_dots, fetch_column, fetch_pairs, pairs_scales
from .tile_quants import fetch_quant_columns, fetch_quants, fetch_words, own_lanes, quant_scales, quant_words
from .tile_steps import add_quants, quants_dots
from .turns import barrier_of, give, only, take


@triton.constexpr_function
def warps_of_a_share(alone: bool) -> int:
    return 1 if alone else 4


@triton.constexpr_function
def handed_words(shares: int, alone: bool) -> int:
    """Words of a program's room in which warps hand on four sums a lane."""
    return 128 * warps_of_a_share(alone) if shares > 1 else 0


@triton.constexpr_function
def room_words(shares: int, alone: bool) -> int:
    """Words of a program's room; behind those that warps hand on lie eight partial sums of sixteen rows."""
    handed: int = handed_words(shares, alone)
    return handed + 128 * (1 if alone else 4)


@triton.jit
def fetch_round(
    base, rows, units, top, unit, COUNT: tl.constexpr, SHARES: tl.constexpr, ALONE: tl.constexpr, TYPE: tl.constexpr
):
    """A round of weights on its way: COUNT units for each share."""
    if ALONE:
        return fetch_pairs(base, rows, units, top, unit, COUNT, SHARES, TYPE)
    elif has_width(TYPE, 8):
        return fetch_words(base, rows, units, top, unit, COUNT, SHARES)
    else:
        return fetch_quants(base, rows, units, top, unit, COUNT, SHARES, TYPE)


@triton.jit
def unit_dots(raw, column, SHARES: tl.constexpr, ALONE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    if ALONE:
        return column_dots(raw[0], column, SHARES, TYPE, FORM)
    else:
        return quants_dots(quant_words(raw, TYPE), column, TYPE, FORM)


@triton.jit
def unit_scales(raw, ALONE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    if ALONE:
        return pairs_scales(raw[1], TYPE, FORM)
    else:
        return quant_scales(raw, TYPE, FORM)


@triton.jit
def round_scales(raws, ALONE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Scales of a round's units."""
    scales = ()
    for i in tl.static_range(len(raws)):
        scales = scales + (unit_scales(raws[i], ALONE, TYPE, FORM),)
    return scales


@triton.jit
def add_round(sums, dots, scales, columns, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The partial sums after the units of a round."""
    for i in tl.static_range(len(dots)):
        sums = add_quants(sums, dots[i], scales[i], columns[i], TYPE, FORM)
    return sums


@triton.jit
def round_dots(raws, columns, SHARES: tl.constexpr, ALONE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Integer sums of a round's units."""
    dots = ()
    for i in tl.static_range(len(raws)):
        dots = dots + (unit_dots(raws[i], columns[i], SHARES, ALONE, TYPE, FORM),)
    return dots


@triton.jit
def in_turn(
    sums, dots, scales, columns, room, ROUND: tl.constexpr, ROUNDS: tl.constexpr, SHARES: tl.constexpr,
    ALONE: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """The partial sums after a round, to which share after share adds; behind the last round they are the last's."""
    EACH: tl.constexpr = warps_of_a_share(ALONE)
    if SHARES == 1:
        return add_round(sums, dots, scales, columns, TYPE, FORM)
    elif by_hand(FORM):
        t, g, warp = own_lanes(SHARES * EACH)
        turn = ROUND * SHARES + warp // EACH + t * 0 + g * 0
        own = room + (warp % EACH * 32 + g * 4 + t) * 16
        beside = dots[0][0][0] if scales_of(TYPE) == 1 else dots[0][0]
        sums = take(own, tl.where(turn == 0, 0, barrier_of(turn, warp % EACH, EACH)), beside)
        sums = add_round(sums, dots, scales, columns, TYPE, FORM)
        last = turn == ROUNDS * SHARES - 1
        give(own, tl.where(last, 0, barrier_of(turn + 1, warp % EACH, EACH)), sums)
        return sums
    else:
        for turn in tl.static_range(SHARES):
            sums = only(add_round(sums, dots, scales, columns, TYPE, FORM), turn, SHARES, EACH)
        return sums


@triton.jit
def share_sums(
    base, rows, units, top, x, tokens, first, room,
    UNITS: tl.constexpr, STEP: tl.constexpr, SHARES: tl.constexpr, AHEAD: tl.constexpr, ALONE: tl.constexpr,
    TYPE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums, which the last share has, over UNITS units from `first` on: STEP for each share a round, AHEAD
    rounds on their way before the wait for earlier kernels."""
    EACH: tl.constexpr = STEP * SHARES
    ROUNDS: tl.constexpr = UNITS // EACH
    zeros = tl.zeros([4, 8, SHARES * warps_of_a_share(ALONE)], tl.float32)
    sums = (zeros, zeros, zeros, zeros)
    raws = ()
    for r in tl.static_range(AHEAD):
        raws = raws + (fetch_round(base, rows, units, top, first + r * EACH, STEP, SHARES, ALONE, TYPE),)
    wait(OVERLAP)
    for r in tl.static_range(ROUNDS):
        if ALONE:
            columns = fetch_column(x, first + r * EACH, STEP, SHARES, TYPE)
        else:
            columns = fetch_quant_columns(x, tokens, first + r * EACH, STEP, 1, SHARES, TYPE)
        hold(rows, FORM)
        dots = round_dots(raws[r], columns, SHARES, ALONE, TYPE, FORM)
        scales = round_scales(raws[r], ALONE, TYPE, FORM)
        sums = in_turn(sums, dots, scales, columns, room, r, ROUNDS, SHARES, ALONE, TYPE, FORM)
        if r + AHEAD < ROUNDS:
            at = first + (r + AHEAD) * EACH
            raws = raws + (fetch_round(base, rows, units, top, at, STEP, SHARES, ALONE, TYPE),)
            hold(rows, FORM)
    return sums


@triton.jit
def column_sums(
    base, rows, units, top, x, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The same of a single column by one warp, STEP units after STEP units, in a loop."""
    zeros = tl.zeros([4, 8, 1], tl.float32)
    sums = (zeros, zeros, zeros, zeros)
    for u in range(first, first + UNITS, STEP):
        raws = fetch_pairs(base, rows, units, top, u, STEP, 1, TYPE)
        wait(OVERLAP)  # later ones pass at once
        columns = fetch_column(x, u, STEP, 1, TYPE)
        for i in tl.static_range(STEP):
            dots = column_dots(raws[i][0], columns[i], 1, TYPE, FORM)
            sums = add_quants(sums, dots, pairs_scales(raws[i][1], TYPE, FORM), columns[i], TYPE, FORM)
    return sums


@triton.jit
def share_rows(sums, room, top, SHARES: tl.constexpr, ALONE: tl.constexpr, FORM: tl.constexpr):
    """(row, column, sum, whether it is one) of sixteen rows from `top` on, of what the last share has. A sum is
    ((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)), never -0."""
    EACH: tl.constexpr = warps_of_a_share(ALONE)
    t, g, warp = own_lanes(SHARES * EACH)
    if ALONE:
        pair, column = t, t * 0
    else:
        pair, column = warp % 4, t
    COLUMNS: tl.constexpr = 1 if ALONE else 4
    FIRST: tl.constexpr = handed_words(SHARES, ALONE)
    live = (warp // EACH == SHARES - 1) & (t + g >= 0)
    for b in tl.static_range(2):
        for below in tl.static_range(2):
            at = ((below * 8 + pair * 2 + b) * 8 + g) * COLUMNS + column
            leave(room, FIRST + at + warp * 0, sums[2 * b + below], live, FORM)
    tl.debug_barrier()
    below = pair % 2
    parts = ()
    for j in tl.static_range(8):
        parts = parts + (found(room, FIRST + ((below * 8 + j) * 8 + g) * COLUMNS + column + warp * 0, FORM),)
    even = (parts[0] + parts[4]) + (parts[2] + parts[6])
    odd = (parts[1] + parts[5]) + (parts[3] + parts[7])
    return (top + below * 8 + g + warp * 0, column + g * 0 + warp * 0, even + odd + 0.0, live & (pair < 2))
