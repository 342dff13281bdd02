"""What a hyper-connection's long product (hyper_long.py) leaves in parts, added up and scaled by each stream's root
mean square: rank values, and their codes for the gates' programs, each of which makes them for itself.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .fixed import larger, pack, parts_of_codes, quick_inverse, sum_of_bytes
from .hyper_long import REST
from .room import added, leave
from .tensor import words_of


@triton.jit
def quick_sigmoid(x, FORM: tl.constexpr):
    """1 / (1 + e^-x) within a few units in the last place; the CPU's bits are not asked for here."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            "{.reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000;"
            "rcp.approx.ftz.f32 $0, t;}",
            "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return 1.0 / (1.0 + tl.exp(0.0 - x))


@triton.jit
def fetch_parts(partial, owner, at, there, COUNT: tl.constexpr, STRIDE: tl.constexpr):
    """Values `at` of COUNT parts of tokens `owner`, on their way."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (tl.load(partial + (owner * (COUNT * STRIDE) + at) + i * STRIDE, mask=there, other=0.0),)
    return values


@triton.jit
def fetch_squares(partial, owner, first, COUNT: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr):
    """Sums of squares of PARTS parts of COUNT from `first` on, on their way."""
    values = ()
    for i in tl.static_range(PARTS):
        at = owner * (COUNT * STRIDE) + first * STRIDE + (STRIDE - REST)
        values = values + (tl.load(partial + at + i * STRIDE),)
    return values


@triton.jit
def factor_of(squares, share, eps):
    """1 / root mean square of as many numbers as `share` is the inverse of."""
    return tl.rsqrt(added(squares) * share + eps)


@triton.jit
def add_parts(values, factors, STREAMS: tl.constexpr, PARTS: tl.constexpr):
    """A stream's parts are added up, then streams times their factors, over STREAMS."""
    total = values[0] * 0.0
    for stream in tl.static_range(STREAMS):
        own = ()
        for i in tl.static_range(PARTS):
            own = own + (values[stream * PARTS + i],)
        total += added(own) * factors[stream]
    return total * (1.0 / STREAMS)


@triton.jit
def fetch_halves(
    partial, token, tokens, n,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What `rank_values` of pairs (column, block) n [1, 1, N] wants, on its way: of each half of the streams the parts
    of four values a lane, and the sums of squares."""
    half_ = tl.arange(0, 2)[:, None, None]
    eight = tl.arange(0, 8)[None, :, None]
    n = tl.minimum(n, COLUMNS * BLOCKS - 1)
    owner = tl.minimum(token + n // BLOCKS, tokens - 1)
    base = partial + (owner * (STREAMS * PARTS) + half_ * (STREAMS // 2 * PARTS)) * STRIDE + eight * 0
    at = (base + (n % BLOCKS * 32 + eight * 4))[:, :, :, None] + tl.arange(0, 4)[None, None, None, :]
    values, squares = (), ()
    for i in tl.static_range(STREAMS // 2 * PARTS):
        values = values + (tl.load(at + i * STRIDE),)
        squares = squares + (tl.load(base + (i * STRIDE + STRIDE - REST)),)
    return values, squares


@triton.jit
def rank_values(raw, share, eps, STREAMS: tl.constexpr, PARTS: tl.constexpr, FORM: tl.constexpr):
    """Four rank values a lane [2, 8, N, 4], of `fetch_halves`; both halves' lanes have the same."""
    values, squares = raw
    total = values[0] * 0.0
    for s in tl.static_range(STREAMS // 2):
        own, each = (), ()
        for i in tl.static_range(PARTS):
            own = own + (values[s * PARTS + i],)
            each = each + (squares[s * PARTS + i],)
        y = added(own) * factor_of(each, share, eps)[:, :, :, None]
        total = y if s == 0 else total + y
    low = tl.broadcast_to(tl.sum(total, axis=0, keep_dims=True), total.shape) * (1.0 / STREAMS)
    return low * quick_sigmoid(low, FORM)


@triton.jit
def leave_halves(
    x, room, n, rank, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr, FORM: tl.constexpr
):
    """`rank_values` x of pairs (column, block) n as codes in words [column, low or high bytes, pair, 8-weight group of
    a block, block of the pair, 2], so that a thread's are neighbours; behind them scales float32 [column, BLOCKS up to
    a multiple of four], then, if SUMMED, sums of codes times these. One half's lanes leave low bytes, the other's high.
    """
    four = words_of(x)
    most = larger(larger(four[0], four[1]), larger(four[2], four[3]))
    largest = tl.max(most.to(tl.int32, bitcast=True), axis=1, keep_dims=True).to(tl.float32, bitcast=True)
    largest = tl.broadcast_to(largest, most.shape)
    part = tl.arange(0, 2)[:, None, None]
    m = tl.arange(0, 8)[None, :, None]
    column, block = n // BLOCKS, n % BLOCKS
    live = n + 0 * (m + part) < COLUMNS * BLOCKS
    STEP: tl.constexpr = (BLOCKS + 3) // 4 * 4
    scale = largest * (1.0 / 32385.0)
    own = COLUMNS * (rank // 2) + column * STEP + block + 0 * (m + part)
    leave(room, own, scale, live & (m + part == 0), FORM)
    magic, select = parts_of_codes(part + 0 * m)
    at = column * (rank // 2) + block // 2 * 16 + block % 2 * 2 + m // 2 * 4 + m % 2 + part * (rank // 4)
    word = pack(four, quick_inverse(largest, FORM), magic, select, FORM)
    leave(room, at, word, live, FORM)
    if SUMMED:
        total = sum_of_bytes(word, FORM) * (1 + 255 * part)
        every = tl.sum(tl.sum(total, axis=1, keep_dims=True), axis=0, keep_dims=True)
        y = tl.broadcast_to(every, word.shape).to(tl.float32) * scale
        leave(room, own + COLUMNS * STEP, y, live & (m + part == 0), FORM)
