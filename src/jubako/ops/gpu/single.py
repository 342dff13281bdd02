"""Rows times one column in eight bits, with the bits of products.py, where each lane has a block of a row for itself.

Lanes are [8, rows]: number (j, row) adds up blocks j, j + 8, …: eight lanes side by side read 128 bytes of a row, and
the tree stays inside of a warp. Tensor cores gain nothing from a single column.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import addends, factors, fetch_blocks, words
from .kinds import number_bytes, scales_of, wants_sums
from .products import fetch_pieces, number_step, plain, step, words_dot


@triton.jit
def fetch_single(
    base, rows, blocks, top, first, COUNT: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """COUNT units of GROUPS groups of ROWS rows from `top` on, on their way: a tuple for `meet_single`."""
    raws = ()
    j = tl.arange(0, 8)[:, None, None]
    for g in tl.static_range(GROUPS):
        row = tl.minimum(top + g * ROWS + tl.arange(0, ROWS), rows - 1)[None, :, None]
        group = ()
        for u in tl.static_range(COUNT):
            if number_bytes(TYPE) > 0:
                group = group + (fetch_pieces(base, blocks, row, j, first + u, TYPE),)
            else:
                group = group + (fetch_blocks(base, rows, blocks, row, j, first + u, TYPE, EVEN, True),)
        raws = raws + (group,)
    return raws


@triton.jit
def single_column(x, token, unit, lanes, SUMS: tl.constexpr, EVEN: tl.constexpr):
    """A unit of a column as `products.column` gives it; lanes: zeros [1, rows, 1], so that every lane loads its own."""
    q, d, s, numbers, blocks, valid = x
    j = tl.arange(0, 8)[:, None, None] + lanes
    more = unit * 8
    lane = token * 4 * blocks + j
    a = tl.load(words(q, lane, 8) + more * 4)
    b = tl.load(words(q + blocks * 16, lane, 8) + more * 4)
    if EVEN:
        scale = tl.load(d + (token * blocks + j) + more)
    else:
        scale = tl.load(d + (token * blocks + j) + more, mask=more + j < valid, other=0.0)
    first, second = j, j
    if SUMS:
        first = tl.load(s + (token * 2 * blocks + j) + more)
        second = tl.load(s + ((token * 2 + 1) * blocks + j) + more)
    return a, b, a, b, scale, first, second


@triton.jit
def single_numbers(x, token, unit, lanes):
    """256 numbers of a column: eight pieces of 32, of which lane j takes 4j … 4j + 3, float32 [8, rows, 4] each."""
    q, d, s, numbers, blocks, valid = x
    lane = tl.arange(0, 8)[:, None, None] * 4 + tl.arange(0, 4)[None, None, :] + lanes
    pieces = ()
    for v in tl.static_range(8):
        there = (lane >= 0) & (unit * 8 + v < valid)
        piece = tl.load(numbers + (token * blocks + unit * 8 + v) * 32 + lane, mask=there, other=0.0)
        pieces = pieces + (piece,)
    return pieces


@triton.jit
def single_dots(w, x, TYPE: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of a lane's block, twice, or of its halves where each has a scale."""
    zero = tl.zeros_like(x[0])
    if scales_of(TYPE) == 0:
        both = words_dot(w[1], x[1], x[3], words_dot(w[0], x[0], x[2], zero, False, FORM), False, FORM)
        dot = tl.sum(both, axis=2, keep_dims=True)
        return dot, dot
    else:
        first = tl.sum(words_dot(w[0], x[0], x[2], zero, False, FORM), axis=2, keep_dims=True)
        return first, tl.sum(words_dot(w[1], x[1], x[3], zero, False, FORM), axis=2, keep_dims=True)


@triton.jit
def single_columns(x, token, first, COUNT: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """COUNT units of a column on their way: a tuple for `meet_single`. x, EVEN: as in `products.meet_groups`."""
    lanes = tl.zeros([1, ROWS, 1], tl.int32)
    units = ()
    for u in tl.static_range(COUNT):
        if number_bytes(TYPE) > 0:
            units = units + (single_numbers(x, token, first + u, lanes),)
        else:
            units = units + (single_column(x, token, first + u, lanes, wants_sums(TYPE), EVEN),)
    return units


@triton.jit
def meet_single(sums, raws, units, token, TYPE: tl.constexpr, FORM: tl.constexpr):
    """The groups' partial sums (a tuple) after some units more."""
    seed = token + tl.arange(0, 8)[:, None, None] + tl.zeros([1, sums[0].shape[1], 1], tl.int32)
    for u in tl.static_range(len(units)):
        after = ()
        for g in tl.static_range(len(sums)):
            if number_bytes(TYPE) > 0:
                p = number_step(sums[g], plain(raws[g][u], TYPE), units[u], FORM)
            else:
                dots = single_dots(addends(raws[g][u], seed, TYPE, FORM), units[u], TYPE, FORM)
                p = step(sums[g], dots, factors(raws[g][u], TYPE), units[u], TYPE, FORM)
            after = after + (p,)
        sums = after
    return sums


@triton.jit
def no_sums(GROUPS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Partial sums before the first block."""
    EACH: tl.constexpr = 4 if number_bytes(TYPE) > 0 else 1
    sums = ()
    for _ in tl.static_range(GROUPS):
        sums = sums + (tl.zeros([8, ROWS, EACH], tl.float32),)
    return sums


@triton.jit
def single_tree(p, ROWS: tl.constexpr):
    """`products.tree` of partial sums [8, rows, …]: float32 [rows]."""
    x = tl.reshape(tl.sum(p, axis=2), [2, 4, ROWS])
    x = tl.sum(tl.reshape(tl.sum(x, axis=0), [2, 2, ROWS]), axis=0)
    return tl.sum(x, axis=0) + 0.0
