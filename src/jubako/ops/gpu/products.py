"""Rows times columns, in the order that csrc/linear.h writes down: the same bits as the CPU's, whatever the launch.

Lanes are [4, 2·rows]: number (j mod 4, ⌊j / 4⌋·rows + row) adds up blocks j, j + 8, …: P_j. The tree over j comes last.
Eight rows and four blocks of each are a warp, as tensor cores want them. Products of plain numbers alone have an order
of their own, the same for all widths, with four sums a lane.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import addends, factors, fetch_blocks, words
from .integer import dot4, fma, tensor_dots
from .kinds import bias_of, is_, minimum_of, number_bytes, scales_of, wants_sums


@triton.jit
def lane_rows(ROWS: tl.constexpr):
    """Which of ROWS rows each lane has: int32 [1, 2·ROWS, 1]."""
    return (tl.arange(0, 2 * ROWS) % ROWS)[None, :, None]


@triton.jit
def lane_blocks(LANES: tl.constexpr):
    """Which block of a unit each of 4 × LANES lanes has: int32 [4, 2·rows, 1]."""
    upper = tl.arange(0, LANES) // (LANES // 2)
    return upper[None, :, None] * 4 + tl.arange(0, 4)[:, None, None]


@triton.jit
def column(
    x, token, unit, LANES: tl.constexpr, FINE: tl.constexpr, SUMS: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr
):
    """A unit of a quantised column: (low 0-15, low 16-31, high 0-15, high 16-31, d, Σ first, Σ second).

    For tensor cores low and high come together, as `tensor_dots` has it, in the first two.
    """
    q, d, s, numbers, blocks, valid = x
    j = lane_blocks(LANES)
    step = unit * 8  # apart from the lane, so that one address serves units whose number is known
    lane = token * 4 * blocks + j
    if FORM == 4:
        place = tl.arange(0, LANES)[None, :, None] % 8
        live = (place // 2) == tl.arange(0, 4)[:, None, None]
        if FINE:
            lane += (place % 2) * 2 * blocks
        else:
            live &= place % 2 == 0
        a = tl.load(words(q, lane, 8) + step * 4, mask=live, other=0)
        b = tl.load(words(q + blocks * 16, lane, 8) + step * 4, mask=live, other=0)
        c, e = a, b
    else:
        a = tl.load(words(q, lane, 8) + step * 4)
        b = tl.load(words(q + blocks * 16, lane, 8) + step * 4)
        c, e = a, b
        if FINE:
            c = tl.load(words(q + blocks * 32, lane, 8) + step * 4)
            e = tl.load(words(q + blocks * 48, lane, 8) + step * 4)
    if EVEN:
        scale = tl.load(d + (token * blocks + j) + step)
    else:
        scale = tl.load(d + (token * blocks + j) + step, mask=step + j < valid, other=0.0)
    first, second = j, j
    if SUMS:
        first = tl.load(s + (token * 2 * blocks + j) + step)
        second = tl.load(s + ((token * 2 + 1) * blocks + j) + step)
    return a, b, c, e, scale, first, second


@triton.jit
def words_dot(w, low, high, acc, FINE: tl.constexpr, FORM: tl.constexpr):
    """acc and Σ code·q of four words, lane by lane; codes are sums of the words in the tuple w."""
    for k in tl.static_range(len(w)):
        acc = dot4(w[k], low, acc, FORM)
        if FINE:
            acc += dot4(w[k], high, tl.zeros_like(acc), FORM) * 256
    return acc


@triton.jit
def own_dot(c, GROUP: tl.constexpr):
    """Of the sums of `tensor_dots`, a lane's for the first or the second group of rows: int32 [4, 2·rows, 1]."""
    i = tl.arange(0, 4)[None, None, :]
    weight = tl.where(i == 2 * GROUP, 1, tl.where(i == 2 * GROUP + 1, 256, 0))
    return tl.sum(c * weight, axis=2, keep_dims=True)


@triton.jit
def pair_dots(w, v, low, high, FINE: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of sixteen weights of two groups of rows: int32 [4, 2·rows, 1] each."""
    zero = tl.zeros_like(w[0])
    if FORM == 4:
        c = tensor_dots(w[0], v[0], low, zero)
        return own_dot(c, 0), own_dot(c, 1)
    else:
        first = tl.sum(words_dot(w, low, high, zero, FINE, FORM), axis=2, keep_dims=True)
        second = tl.sum(words_dot(v, low, high, zero, FINE, FORM), axis=2, keep_dims=True)
        return first, second


@triton.jit
def block_dots(w, v, x, FINE: tl.constexpr, FORM: tl.constexpr):
    """Σ code·q of thirty-two weights of two groups of rows: int32 [4, 2·rows, 1] each."""
    a, b, c, e, scale, s0, s1 = x
    zero = tl.zeros_like(w[0][0])
    if FORM == 4:
        sums = tensor_dots(w[1][0], v[1][0], b, tensor_dots(w[0][0], v[0][0], a, zero))
        return own_dot(sums, 0), own_dot(sums, 1)
    else:
        first = words_dot(w[1], b, e, words_dot(w[0], a, c, zero, FINE, FORM), FINE, FORM)
        second = words_dot(v[1], b, e, words_dot(v[0], a, c, zero, FINE, FORM), FINE, FORM)
        return tl.sum(first, axis=2, keep_dims=True), tl.sum(second, axis=2, keep_dims=True)


@triton.jit
def dots_of(w, v, x, TYPE: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr):
    """What `step` wants of two groups of rows, a pair each: Σ code·q of the block or of its halves."""
    if scales_of(TYPE) == 0:
        first, second = block_dots(w, v, x, FINE, FORM)
        return (first, first), (second, second)
    else:
        first0, second0 = pair_dots(w[0], v[0], x[0], x[2], FINE, FORM)
        first1, second1 = pair_dots(w[1], v[1], x[1], x[3], FINE, FORM)
        return (first0, first1), (second0, second1)


@triton.jit
def step(p, dots, scale, x, TYPE: tl.constexpr, FORM: tl.constexpr):
    """P_j after one more unit: float32 [4, 2·rows, 1]."""
    factor, s0, s1, offset, m0, m1 = scale
    dx, sum0, sum1 = x[4], x[5], x[6]
    bias: tl.constexpr = bias_of(TYPE)
    if scales_of(TYPE) == 0:
        dot = dots[0]
        if bias != 0:
            dot -= bias * (sum0 + sum1)
        p = fma(dot.to(tl.float32), factor * dx, p, FORM)
    else:
        dot0, dot1 = dots
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
    """COUNT units of rows `row` (made of `lane_rows`) of a matrix on their way: a tuple for `meet`."""
    raws = ()
    j = lane_blocks(row.shape[1])
    for u in tl.static_range(COUNT):
        if number_bytes(TYPE) > 0:
            raws = raws + (fetch_pieces(base, blocks, row, j, first + u, TYPE),)
        else:
            raws = raws + (fetch_blocks(base, rows, blocks, row, j, first + u, TYPE, EVEN),)
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
    LANES: tl.constexpr = sums[0].shape[1]
    seed = token + lane_blocks(LANES)
    for u in tl.static_range(COUNT):
        weights = ()
        for g in tl.static_range(GROUPS):
            if number_bytes(TYPE) > 0:
                weights = weights + (plain(raws[g][u], TYPE),)
            else:
                weights = weights + ((addends(raws[g][u], seed, TYPE, FORM), factors(raws[g][u], TYPE)),)
        after = ()
        for c in tl.static_range(COLUMNS):
            t = tl.minimum(token + c, last_token)
            if number_bytes(TYPE) > 0:
                unit = number_column(x, t, first + u, LANES)
                for g in tl.static_range(GROUPS):
                    after = after + (number_step(sums[c * GROUPS + g], weights[g], unit, FORM),)
            else:
                unit = column(x, t, first + u, LANES, FINE, wants_sums(TYPE), EVEN, FORM)
                for g in tl.static_range(0, GROUPS, 2):
                    w = weights[g][0]
                    if g + 1 < GROUPS:
                        mine, others = dots_of(w, weights[g + 1][0], unit, TYPE, FINE, FORM)
                        after = after + (step(sums[c * GROUPS + g], mine, weights[g][1], unit, TYPE, FORM),)
                        after = after + (step(sums[c * GROUPS + g + 1], others, weights[g + 1][1], unit, TYPE, FORM),)
                    else:
                        zero = tl.zeros_like(w[0][0])
                        mine, others = dots_of(w, ((zero,), (zero,)), unit, TYPE, FINE, FORM)
                        after = after + (step(sums[c * GROUPS + g], mine, weights[g][1], unit, TYPE, FORM),)
        sums = after
    return sums


@triton.jit
def fetch_numbers(base, blocks, row, unit, TYPE: tl.constexpr):
    """`fetch_pieces` of `row` [1, rows, 1] as [8, rows, 4]."""
    return fetch_pieces(base, blocks, row, tl.arange(0, 8)[:, None, None], unit, TYPE)


@triton.jit
def fetch_pieces(base, blocks, row, j, unit, TYPE: tl.constexpr):
    """Plain numbers 256·unit on of `row` as they lie: eight pieces of 32, of which lane j takes 4j … 4j + 3."""
    lane = j * 4 + tl.arange(0, 4)[None, None, :]
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
def number_column(x, token, unit, LANES: tl.constexpr):
    """256 numbers of a column: eight pieces of 32, of which lane j takes 4j … 4j + 3, float32 [4, 2·rows, 4] each."""
    q, d, s, numbers, blocks, valid = x
    lane = lane_blocks(LANES) * 4 + tl.arange(0, 4)[None, None, :]
    pieces = ()
    for v in tl.static_range(8):
        there = (lane >= 0) & (unit * 8 + v < valid)
        piece = tl.load(numbers + (token * blocks + unit * 8 + v) * 32 + lane, mask=there, other=0.0)
        pieces = pieces + (piece,)
    return pieces


@triton.jit
def number_step(p, weights, pieces, FORM: tl.constexpr):
    """The sums float32 [4, 2·rows, 4] after 256 plain weights more."""
    for v in tl.static_range(8):
        p = fma(weights[v], pieces[v], p, FORM)
    return p


@triton.jit
def nothing(COLUMNS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Partial sums before the first block."""
    EACH: tl.constexpr = 4 if number_bytes(TYPE) > 0 else 1
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums = sums + (tl.zeros([4, 2 * ROWS, EACH], tl.float32),)
    return sums


@triton.jit
def tree(p, ROWS: tl.constexpr):
    """((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)): float32 [rows]. Never -0."""
    x = tl.sum(tl.reshape(tl.sum(p, axis=2), [2, 2, 2, ROWS]), axis=2)
    return tl.sum(tl.sum(x, axis=0), axis=0) + 0.0
