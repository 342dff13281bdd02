"""Rows times columns, in the order that csrc/linear.h writes down: the same bits as the CPU's, whatever the launch.

Lane (j, row) of a tensor [8, rows, …] adds up blocks j, j + 8, …: P_j. The tree over j comes last. Products of plain
numbers alone have an order of their own, the same for all widths, with four sums a lane.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import factors, fetch, unpack, words
from .integer import dot4, fma
from .kinds import bias_of, is_, minimum_of, number_bytes, scales_of, wants_sums


@triton.jit
def column(x, token, unit, still, FINE: tl.constexpr, SUMS: tl.constexpr, EVEN: tl.constexpr):
    """A unit of a quantised column: (low 0-15, low 16-31, high 0-15, high 16-31, d, Σ first, Σ second).

    still: zeros [8, rows, 1], so that every lane loads its own.
    """
    q, d, s, numbers, blocks, valid = x
    block = still + (unit * 8 + tl.arange(0, 8)[:, None, None])
    lane = token * 4 * blocks + block
    a = tl.load(words(q, lane, 8))
    b = tl.load(words(q, lane + blocks, 8))
    c, e = a, b
    if FINE:
        c = tl.load(words(q, lane + 2 * blocks, 8))
        e = tl.load(words(q, lane + 3 * blocks, 8))
    if EVEN:
        scale = tl.load(d + token * blocks + block)
    else:
        scale = tl.load(d + token * blocks + block, mask=block < valid, other=0.0)
    first, second = still, still
    if SUMS:
        first = tl.load(s + token * 2 * blocks + block)
        second = tl.load(s + (token * 2 + 1) * blocks + block)
    return a, b, c, e, scale, first, second


@triton.jit
def pair_dot(w, low, high, FINE: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of sixteen weights: int32 [8, rows, 1]."""
    zero = tl.zeros_like(w)
    acc = tl.sum(dot4(w, low, zero, FORM), axis=2, keep_dims=True)
    if FINE:
        acc += tl.sum(dot4(w, high, zero, FORM), axis=2, keep_dims=True) * 256
    return acc


@triton.jit
def block_dot(w0, w1, x, FINE: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of thirty-two weights: int32 [8, rows, 1]."""
    a, b, c, e, scale, first, second = x
    zero = tl.zeros_like(w0)
    acc = tl.sum(dot4(w1, b, dot4(w0, a, zero, FORM), FORM), axis=2, keep_dims=True)
    if FINE:
        acc += tl.sum(dot4(w1, e, dot4(w0, c, zero, FORM), FORM), axis=2, keep_dims=True) * 256
    return acc


@triton.jit
def step(p, w0, w1, scale, x, TYPE: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr):
    """P_j after one more unit: float32 [8, rows, 1]."""
    factor, s0, s1, offset, m0, m1 = scale
    dx, sum0, sum1 = x[4], x[5], x[6]
    bias: tl.constexpr = bias_of(TYPE)
    if scales_of(TYPE) == 0:
        dot = block_dot(w0, w1, x, FINE, FORM)
        if bias != 0:
            dot -= bias * (sum0 + sum1)
        p = fma(dot.to(tl.float32), factor * dx, p, FORM)
    else:
        dot0 = pair_dot(w0, x[0], x[2], FINE, FORM)
        dot1 = pair_dot(w1, x[1], x[3], FINE, FORM)
        if bias != 0:
            dot0 -= bias * sum0
            dot1 -= bias * sum1
        if scales_of(TYPE) == 1:
            both = dot0.to(tl.float32) * s0 + dot1.to(tl.float32) * s1
            p = fma(both, factor * dx, p, FORM)
        else:
            p = fma(dot0.to(tl.float32), factor * dx, p, FORM)
            p = fma(dot1.to(tl.float32), s1 * dx, p, FORM)
    if minimum_of(TYPE) == 1:
        p = fma(offset, dx * (sum0 + sum1).to(tl.float32), p, FORM)
    if minimum_of(TYPE) == 2:
        both = sum0.to(tl.float32) * m0 + sum1.to(tl.float32) * m1
        p = fma(both, offset * dx, p, FORM)
    return p


@triton.jit
def fetch_units(base, rows, blocks, row, first, COUNT: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr):
    """COUNT units of a matrix on their way: a tuple for `meet`."""
    raws = ()
    for u in tl.static_range(COUNT):
        if number_bytes(TYPE) > 0:
            raws = raws + (fetch_numbers(base, blocks, row, first + u, TYPE),)
        else:
            raws = raws + (fetch(base, rows, blocks, row, first + u, TYPE, EVEN),)
    return raws


@triton.jit
def meet(
    sums, raws, x, token, last_token, first,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """The partial sums (a tuple, one for each column) after COUNT units more: `meet_groups` of one group."""
    return meet_groups(sums, (raws,), x, token, last_token, first, COUNT, COLUMNS, 1, TYPE, FINE, EVEN, FORM)


@triton.jit
def meet_groups(
    sums, raws, x, token, last_token, first,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr,
    EVEN: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """The partial sums of GROUPS groups of rows, whose units `raws` holds, after COUNT units more.

    sums: a tuple, the groups' sums of the first column, then of the next. A unit of a column is loaded once.
    x: (q, d, s, numbers, blocks, valid) as in a `Quantised`; EVEN: weights and input are made of whole units.
    """
    for u in tl.static_range(COUNT):
        weights = ()
        for g in tl.static_range(GROUPS):
            if number_bytes(TYPE) > 0:
                weights = weights + (plain(raws[g][u], TYPE),)
            else:
                weights = weights + ((unpack(raws[g][u], TYPE, FORM), factors(raws[g][u], TYPE)),)
        after = ()
        for c in tl.static_range(COLUMNS):
            t = tl.minimum(token + c, last_token)
            if number_bytes(TYPE) > 0:
                unit = number_column(x, t, first + u, weights[0][0])
                for g in tl.static_range(GROUPS):
                    after = after + (number_step(sums[c * GROUPS + g], weights[g], unit, FORM),)
            else:
                still = tl.zeros_like(raws[0][u][6])
                unit = column(x, t, first + u, still, FINE, wants_sums(TYPE), EVEN)
                for g in tl.static_range(GROUPS):
                    w = weights[g][0]
                    p = step(sums[c * GROUPS + g], w[0], w[1], weights[g][1], unit, TYPE, FINE, FORM)
                    after = after + (p,)
        sums = after
    return sums


@triton.jit
def fetch_numbers(base, blocks, row, unit, TYPE: tl.constexpr):
    """Plain numbers 256·unit on of `row` as they lie: eight pieces of 32, each int32 or int16 [8, rows, 4]."""
    lane = tl.arange(0, 8)[:, None, None] * 4 + tl.arange(0, 4)[None, None, :]
    pieces = ()
    for v in tl.static_range(8):
        block = unit * 8 + v
        there = (block < blocks) & (lane >= 0) & (row >= 0)
        place = (row * blocks + tl.minimum(block, blocks - 1)) * 32 + lane
        if number_bytes(TYPE) == 4:
            piece = tl.load(base.to(tl.pointer_type(tl.int32)) + place, mask=there, other=0)
        else:
            piece = tl.load(base.to(tl.pointer_type(tl.int16)) + place, mask=there, other=0)
        pieces = pieces + (piece,)
    return pieces


@triton.jit
def plain(raw, TYPE: tl.constexpr):
    """The pieces as float32."""
    pieces = ()
    for v in tl.static_range(8):
        if is_(TYPE, "F32"):
            piece = raw[v].to(tl.float32, bitcast=True)
        elif is_(TYPE, "F16"):
            piece = raw[v].to(tl.float16, bitcast=True).to(tl.float32)
        else:
            piece = (raw[v].to(tl.int32) << 16).to(tl.float32, bitcast=True)
        pieces = pieces + (piece,)
    return pieces


@triton.jit
def number_column(x, token, unit, like):
    """256 numbers of a column: eight pieces of 32, of which lane j takes 4j … 4j + 3, float32 [8, rows, 4] each."""
    q, d, s, numbers, blocks, valid = x
    lane = tl.arange(0, 8)[:, None, None] * 4 + tl.arange(0, 4)[None, None, :] + tl.zeros_like(like).to(tl.int32)
    pieces = ()
    for v in tl.static_range(8):
        there = (lane >= 0) & (unit * 8 + v < valid)
        piece = tl.load(numbers + (token * blocks + unit * 8 + v) * 32 + lane, mask=there, other=0.0)
        pieces = pieces + (piece,)
    return pieces


@triton.jit
def number_step(p, weights, pieces, FORM: tl.constexpr):
    """The sums float32 [8, rows, 4] after 256 plain weights more."""
    for v in tl.static_range(8):
        p = fma(weights[v], pieces[v], p, FORM)
    return p


@triton.jit
def nothing(COLUMNS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Partial sums before the first block."""
    EACH: tl.constexpr = 4 if number_bytes(TYPE) > 0 else 1
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums = sums + (tl.zeros([8, ROWS, EACH], tl.float32),)
    return sums


@triton.jit
def tree(p, ROWS: tl.constexpr):
    """((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)): float32 [rows]. Never -0."""
    x = tl.reshape(tl.sum(p, axis=2), [2, 4, ROWS])
    x = tl.sum(tl.reshape(tl.sum(x, axis=0), [2, 2, ROWS]), axis=0)
    return tl.sum(x, axis=0) + 0.0
