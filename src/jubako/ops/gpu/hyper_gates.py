"""A hyper-connection's gates by tensor cores: the wide product, from rank values to a gate for each element of each
stream, and the mean over the streams of what the gates let through.

A program makes 32 hidden values of up to four tokens; each adds up the long product's parts (hyper_long.py) for itself.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .activation import Quantised, codes_of, room_for, rounded
from .blocks import half
from .fixed import hold, put
from .hyper_long import REST, Cut, cut_for, fetch_fresh, fresh, long_parts
from .integer import fma
from .target import release, target, wait
from .tensor import block_dots, fetch_both, words_of

if TYPE_CHECKING:
    from .hyper import HyperMix

GROUP = 4  # columns of a program


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
def fetch_parts(partial, stride, owner, tokens, r, there, STREAMS: tl.constexpr, PARTS: tl.constexpr):
    """Values r of tokens `owner` of every part, on their way."""
    values = ()
    for i in tl.static_range(STREAMS * PARTS):
        values = values + (tl.load(partial + ((i * tokens + owner) * stride + r), mask=there, other=0.0),)
    return values


@triton.jit
def fetch_squares(partial, stride, stream, owner, tokens, at, PARTS: tl.constexpr):
    """Sums of squares of a stream's parts, on their way."""
    values = ()
    for i in tl.static_range(PARTS):
        values = values + (tl.load(partial + (((stream * PARTS + i) * tokens + owner) * stride + at)),)
    return values


@triton.jit
def factor_of(squares, hidden, eps):
    """1 / root mean square."""
    total = squares[0]
    for i in tl.static_range(1, len(squares)):
        total += squares[i]
    return tl.rsqrt(total / hidden + eps)


@triton.jit
def add_parts(values, factors, STREAMS: tl.constexpr, PARTS: tl.constexpr):
    """A stream's parts are added up, then streams times their factors, over STREAMS."""
    total = values[0] * 0.0
    for stream in tl.static_range(STREAMS):
        y = values[stream * PARTS]
        for i in tl.static_range(1, PARTS):
            y += values[stream * PARTS + i]
        total += y * factors[stream]
    return total * (1.0 / STREAMS)


@triton.jit
def hand_over(x, token, block, live, blocks, q, d, s, numbers, FINE: tl.constexpr, FORM: tl.constexpr):
    """`activation.store_each` of block `block` of tokens `token` [n]."""
    codes, scale = codes_of(x, FINE)
    k = tl.arange(0, 32)[None, :]
    there = live[:, None]
    place = q + (((token * 4)[:, None] + k // 16) * blocks * 16 + block * 16 + k % 16)
    if FINE:
        high = (codes + 128) >> 8
        put(place, codes - (high << 8), there, FORM)
        put(place + blocks * 32, high, there, FORM)
    else:
        put(place, codes, there, FORM)
    put(numbers + ((token * blocks + block)[:, None] * 32 + k), x, there, FORM)
    put(d + (token * blocks + block)[:, None], scale[:, None], there, FORM)
    sums = tl.sum(tl.reshape(codes, [x.shape[0], 2, 16]), axis=2)
    which = tl.arange(0, 2)[None, :]
    put(s + (((token * 2)[:, None] + which) * blocks + block), sums, there, FORM)


@triton.jit
def quick_codes(x):
    """`codes_of` of x float32 [N, 32] in sixteen bits, but for the last bit of scales. What is no number stays so."""
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # a NaN is the largest
    largest = tl.max(magnitude, axis=1).to(tl.float32, bitcast=True)
    inverse = tl.where(largest < 7.888609052210118e-31, 0.0, 32385.0 / largest)
    q = rounded(x * inverse[:, None])
    return tl.where(q == q, q, 0.0).to(tl.int32), largest * (1.0 / 32385.0)


@triton.jit
def fetch_pairs(up, rows, pairs, top, t, g, PAIRS: tl.constexpr):
    """All pairs of blocks of sixteen rows from `top` on, in tiles, as `fetch_both` gives them."""
    at = top // 8 * pairs
    codes = up.to(tl.pointer_type(tl.int32)) + ((at * 128 + g * 16 + t * 4)[:, :, :, None] + tl.arange(0, 4))
    scales = (up + tl.cdiv(rows, 16) * 16 * pairs * 64).to(tl.pointer_type(tl.int32)) + (at * 8 + g + t * 0)
    return fetch_both(codes, scales, pairs, PAIRS, 1)


@triton.jit
def leave_codes(x, q, d, rank, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, FORM: tl.constexpr):
    """Columns of rank values, a block of x float32 [COLUMNS * BLOCKS, 32] after the other, as codes: q int8 [column,
    low or high byte, pair, 8-weight group of a block, block of the pair, 8], so that a thread's words are neighbours;
    scales d float32 [column, block]."""
    codes, scale = quick_codes(x)
    n = tl.arange(0, COLUMNS * BLOCKS)
    column, block = n // BLOCKS, n % BLOCKS
    k = tl.arange(0, 32)[None, :]
    at = q + ((column * 2 * rank + block // 2 * 64 + block % 2 * 8)[:, None] + k // 8 * 16 + k % 8)
    there = (block * 32 < rank)[:, None]
    high = (codes + 128) >> 8
    put(at, codes - (high << 8), there, FORM)
    put(at + rank, high, there, FORM)
    put(d + (column * (rank // 32) + block)[:, None], scale[:, None], there, FORM)


@triton.jit
def pair_sums(raws, q, d, rank, t, g, w, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Products of sixteen rows with COLUMNS columns that `leave_codes` left: of rows and of those eight below."""
    part = tl.minimum(g // 2, COLUMNS - 1) * 2 + g % 2
    words = q.to(tl.pointer_type(tl.int32)) + ((part * (rank // 4) + t * 4 + w * 0)[:, :, :, None] + tl.arange(0, 4))
    scales = d + (tl.minimum(t, COLUMNS - 1) * (rank // 32) + (g + w) * 0)
    zero = tl.zeros([4, 8, w.shape[2]], tl.float32)
    y, below = zero, zero
    for i in tl.static_range(PAIRS):
        row, under = words_of(raws[i][0]), words_of(raws[i][1])
        dots = block_dots(row, under, words_of(tl.load(words + i * 16)), FORM)
        d0, d1 = tl.load(scales + 2 * i), tl.load(scales + (2 * i + 1))
        y = fma(dots[0].to(tl.float32), half(raws[i][2]) * d0, y, FORM)
        below = fma(dots[1].to(tl.float32), half(raws[i][3]) * d0, below, FORM)
        y = fma(dots[2].to(tl.float32), half(raws[i][2] >> 16) * d1, y, FORM)
        below = fma(dots[3].to(tl.float32), half(raws[i][3] >> 16) * d1, below, FORM)
    return y, below


@triton.jit
def mix_tile(
    streams, gamma, output, inject, partial, stride, rest, up, up_scale, q_low, d_low, q, d, s, numbers, blocks,
    tile, token, hidden, rank, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr, COLUMNS: tl.constexpr,
    PENDING: tl.constexpr, SCALED: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """32 mixed hidden values of COLUMNS tokens, quantised; the new streams are kept if there is something PENDING.

    A warp has sixteen elements of one stream. q_low, d_low: room for the rank values' codes, see `leave_codes`.
    """
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8  # so that the compiler sees no runs and leaves t + 4·g to the lanes
    w = tl.arange(0, 2 * STREAMS)[None, None, :]
    stream = w // 2
    element = tile * 32 + w % 2 * 16
    raws = fetch_pairs(up, STREAMS * hidden, PAIRS, stream * hidden + element, t, g, PAIRS)
    of = element + g
    near_gamma, far_gamma = tl.load(gamma + (stream * hidden + of)), tl.load(gamma + (stream * hidden + of + 8))
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)[:, None]
    r = tl.arange(0, LOW)[None, :]
    owner = tl.minimum(token + c, tokens - 1)
    values = fetch_parts(partial, stride, owner, tokens, r, r < rank, STREAMS, PARTS)
    held = tl.minimum(token + tl.minimum(t, COLUMNS - 1), tokens - 1)
    line = held * STREAMS + stream
    near_raw = fetch_fresh(streams, output, line, hidden, held, of, PENDING)
    far_raw = fetch_fresh(streams, output, line, hidden, held, of + 8, PENDING)
    strength = tl.load(inject + line) if PENDING else 0.0
    squares = ()
    for n in tl.static_range(STREAMS):
        squares = squares + (fetch_squares(partial, stride, n, owner, tokens, rest, PARTS),)
    own = fetch_squares(partial, stride, stream, held, tokens, rest, PARTS)
    hold(tokens, FORM)
    factors = ()
    for n in tl.static_range(STREAMS):
        factors = factors + (factor_of(squares[n], hidden, eps),)
    factor = factor_of(own, hidden, eps)
    low = add_parts(values, factors, STREAMS, PARTS)
    low *= quick_sigmoid(low, FORM)
    leave_codes(tl.reshape(low, [COLUMNS * (LOW // 32), 32]), q_low, d_low, rank, COLUMNS, LOW // 32, FORM)
    near = fresh(near_raw, strength, PENDING, FORM)
    far = fresh(far_raw, strength, PENDING, FORM)
    if PENDING:
        there = (t < COLUMNS) & (token + t < tokens) & (of >= 0)
        tl.store(streams + line * hidden + of, near, mask=there)
        tl.store(streams + line * hidden + of + 8, far, mask=there)
    near *= factor * near_gamma
    far *= factor * far_gamma
    tl.debug_barrier()
    y, below = pair_sums(raws, q_low, d_low, rank, t, g, w, PAIRS, COLUMNS, FORM)
    if SCALED:
        scale = tl.load(up_scale)
        y *= scale
        below *= scale
    let = tl.join(quick_sigmoid(y, FORM) * near, quick_sigmoid(below, FORM) * far)
    both = tl.sum(tl.reshape(let, [4, 8, STREAMS, 2, 2]), axis=2)  # column, g, half, below
    both = tl.reshape(tl.permute(both, [0, 2, 3, 1]), [4, 32]) * (1.0 / STREAMS)
    column = tl.arange(0, 4)
    live = (column < COLUMNS) & (token + column < tokens)
    hand_over(both, token + column, tile, live, blocks, q, d, s, numbers, FINE, FORM)


@triton.jit
def next_inject(
    partial, stride, rest, inject, token, hidden, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """How strongly each stream of COLUMNS tokens takes what the block will give, to inject [T, S]."""
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)[:, None]
    s = tl.arange(0, STREAMS)[None, :]
    owner = tl.minimum(token + c, tokens - 1)
    values = fetch_parts(partial, stride, owner, tokens, rest + 1 + s, s >= 0, STREAMS, PARTS)
    factors = ()
    for n in tl.static_range(STREAMS):
        squares = fetch_squares(partial, stride, n, owner, tokens, rest, PARTS)
        factors = factors + (factor_of(squares, hidden, eps),)
    y = 2.0 * quick_sigmoid(add_parts(values, factors, STREAMS, PARTS), FORM)
    tl.store(inject + owner * STREAMS + s, y, mask=token + c < tokens)


@triton.jit
def tile_gate_kernel(
    streams, gamma, output, inject, partial, stride, rest, up, up_scale, room, scales, given, q, d, s, numbers, blocks,
    tiles, hidden, rank, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr, COLUMNS: tl.constexpr,
    PENDING: tl.constexpr, SCALED: tl.constexpr, FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): `mix_tile` of COLUMNS tokens; behind the tiles `next_inject`, to given [T, S]."""
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    if tile < tiles:
        own = (tl.program_id(1) * tiles + tile) * COLUMNS
        mix_tile(
            streams, gamma, output, inject, partial, stride, rest, up, up_scale, room + own * 2 * rank,
            scales + own * (rank // 32), q, d, s, numbers, blocks,
            tile, token, hidden, rank, tokens, eps, STREAMS, PARTS, PAIRS, LOW, COLUMNS, PENDING, SCALED, FINE, FORM,
            OVERLAP,
        )  # fmt: skip
    else:
        next_inject(partial, stride, rest, given, token, hidden, tokens, eps, STREAMS, PARTS, COLUMNS, FORM, OVERLAP)


def tile_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool, inject: torch.Tensor | None = None,
    output: torch.Tensor | None = None, cut: Cut | None = None,
) -> tuple[Quantised, torch.Tensor | None]:  # fmt: skip
    """A mix whose matrices lie in tiles: `hyper.hyper_mix` of up to 16 tokens, after `output` [T, H] was added to the
    streams [T, S, H] by inject [T, S], in place, if it is given."""
    tokens, count, hidden = streams.shape
    device, to, rank = streams.device, target(streams.device), mix.down.rows
    cut = cut or cut_for(hidden)
    columns = min(triton.next_power_of_2(tokens), GROUP)
    tiles, groups = hidden // 32, -(-tokens // columns)
    parts = long_parts(streams, mix, inject, output, columns, cut)
    mixed = room_for(tokens, hidden, fine, device)
    given = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    room = torch.empty(groups * tiles, columns, 2, rank, dtype=torch.int8, device=device)
    scales = torch.empty(groups * tiles, columns, rank // 32, device=device)
    tile_gate_kernel[(tiles + (0 if given is None else 1), groups)](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject, parts,
        parts.stride(1), parts.stride(1) - REST, mix.up.data, mix.up.scale_or_data, room, scales,
        parts if given is None else given,
        mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks, tiles, hidden, rank, tokens, mix.eps,
        STREAMS=count, PARTS=hidden // cut.size, PAIRS=mix.up.blocks // 2, LOW=triton.next_power_of_2(rank),
        COLUMNS=columns, PENDING=output is not None, SCALED=mix.up.scale is not None, FINE=fine, FORM=to.form,
        OVERLAP=to.overlap, num_warps=2 * count, **to.options,
    )  # fmt: skip
    return mixed, given
