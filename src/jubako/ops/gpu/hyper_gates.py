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

from .activation import Quantised, room_for
from .blocks import half
from .fixed import hold, larger, pack, parts_of_codes, quick_inverse
from .fixed_pairs import add_packed, fetch_packed
from .hand_over import hand_over
from .hyper_long import REST, Cut, cut_for, fetch_fresh, fresh, long_parts
from .integer import fma
from .kinds import has_width
from .room import added, elsewhere, found, found_four, leave, own_room
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
def factor_of(squares, hidden, eps):
    """1 / root mean square."""
    return tl.rsqrt(added(squares) / hidden + eps)


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
def fetch_pairs(up, rows, pairs, top, t, g, PAIRS: tl.constexpr):
    """All pairs of blocks of sixteen rows from `top` on, in tiles, as `fetch_both` gives them."""
    at = top // 8 * pairs
    codes = up.to(tl.pointer_type(tl.int32)) + ((at * 128 + g * 16 + t * 4)[:, :, :, None] + tl.arange(0, 4))
    scales = (up + tl.cdiv(rows, 16) * 16 * pairs * 64).to(tl.pointer_type(tl.int32)) + (at * 8 + g + t * 0)
    return fetch_both(codes, scales, pairs, PAIRS, 1)


@triton.jit
def leave_codes(x, room, rank, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, FORM: tl.constexpr):
    """Columns of rank values x float32 [COLUMNS, BLOCKS, 8, 4] as codes in words [column, low or high bytes, pair,
    8-weight group of a block, block of the pair, 2], so that a thread's are neighbours; behind them scales float32
    [column, BLOCKS]."""
    four = words_of(x)
    most = larger(larger(four[0], four[1]), larger(four[2], four[3]))
    largest = tl.max(most.to(tl.int32, bitcast=True), axis=2).to(tl.float32, bitcast=True)
    column = tl.arange(0, COLUMNS)[:, None]
    block = tl.arange(0, BLOCKS)[None, :]
    there = (block * 32 < rank) & (column >= 0)
    leave(room, COLUMNS * (rank // 2) + column * BLOCKS + block, largest * (1.0 / 32385.0), there, FORM)
    inverse = quick_inverse(largest, FORM)[:, :, None]
    n = tl.arange(0, 8)[None, None, :]
    at = (column * (rank // 2) + block // 2 * 16 + block % 2 * 2)[:, :, None] + (n // 2 * 4 + n % 2)
    live = there[:, :, None] & (n >= 0)
    for part in tl.static_range(2):
        magic, select = parts_of_codes(n * 0 + part)
        leave(room, at + part * (rank // 4), pack(four, inverse, magic, select, FORM), live, FORM)


@triton.jit
def add_bytes(y, below, raw, x, d0, d1, FORM: tl.constexpr):
    """Sums of rows and of those eight below after a pair of Q8_0."""
    dots = block_dots(words_of(raw[0]), words_of(raw[1]), x, FORM)
    y = fma(dots[0].to(tl.float32), half(raw[2]) * d0, y, FORM)
    below = fma(dots[1].to(tl.float32), half(raw[3]) * d0, below, FORM)
    y = fma(dots[2].to(tl.float32), half(raw[2] >> 16) * d1, y, FORM)
    below = fma(dots[3].to(tl.float32), half(raw[3] >> 16) * d1, below, FORM)
    return y, below


@triton.jit
def pair_sums(
    raws, room, rank, t, g, w,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, UP: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Products of sixteen rows with COLUMNS columns that `leave_codes` left: of rows and of those eight below."""
    part = tl.minimum(g // 2, COLUMNS - 1) * 2 + g % 2
    words = part * (rank // 4) + t * 4 + w * 0
    scales = ()
    for i in tl.static_range((PAIRS + 1) // 2):
        at = COLUMNS * (rank // 2) + tl.minimum(t, COLUMNS - 1) * BLOCKS + (g + w) * 0 + i * 4
        scales = scales + found_four(room, at, FORM)
    zero = tl.zeros([4, 8, w.shape[2]], tl.float32)
    y, below = zero, zero
    for i in tl.static_range(PAIRS):
        x = found_four(room, words + i * 16, FORM)
        d0 = scales[2 * i].to(tl.float32, bitcast=True)
        d1 = scales[2 * i + 1].to(tl.float32, bitcast=True)
        if has_width(UP, 8):
            y, below = add_bytes(y, below, raws[i], x, d0, d1, FORM)
        else:
            y, below = add_packed((y, below), raws[2 * i], (x[0], x[1]), d0, UP, FORM)
            y, below = add_packed((y, below), raws[2 * i + 1], (x[2], x[3]), d1, UP, FORM)
    return y, below


@triton.jit
def mix_tile(
    streams, gamma, output, inject, partial, up, up_scale, room, q, d, s, numbers, blocks,
    tile, token, hidden, rank, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr,
    COLUMNS: tl.constexpr, PENDING: tl.constexpr, UP: tl.constexpr, SCALED: tl.constexpr, FINE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """32 mixed hidden values of COLUMNS tokens, quantised; the new streams are kept if there is something PENDING.

    A warp has sixteen elements of one stream. room: `room.own_room`, of the rank values' codes (see `leave_codes`),
    then of what the gates let through.
    """
    BLOCKS: tl.constexpr = LOW // 32
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8  # so that the compiler sees no runs and leaves t + 4·g to the lanes
    w = tl.arange(0, 2 * STREAMS)[None, None, :]
    stream = w // 2
    element = tile * 32 + w % 2 * 16
    if has_width(UP, 8):
        raws = fetch_pairs(up, STREAMS * hidden, PAIRS, stream * hidden + element, t, g, PAIRS)
    else:
        raws = fetch_packed(up, STREAMS * hidden, PAIRS, stream * hidden + element, 0, t, g, PAIRS, UP)
    of = element + g
    near_gamma, far_gamma = tl.load(gamma + (stream * hidden + of)), tl.load(gamma + (stream * hidden + of + 8))
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)[:, None]
    r = tl.arange(0, LOW)[None, :]
    owner = tl.minimum(token + c, tokens - 1)
    values = fetch_parts(partial, owner, r, r < rank, STREAMS * PARTS, STRIDE)
    held = tl.minimum(token + tl.minimum(t, COLUMNS - 1), tokens - 1)
    line = held * STREAMS + stream
    near_raw = fetch_fresh(streams, output, line, hidden, held, of, PENDING)
    far_raw = fetch_fresh(streams, output, line, hidden, held, of + 8, PENDING)
    strength = tl.load(inject + line) if PENDING else 0.0
    squares = ()
    for n in tl.static_range(STREAMS):
        squares = squares + (fetch_squares(partial, owner, n * PARTS, STREAMS * PARTS, PARTS, STRIDE),)
    own = fetch_squares(partial, held, stream * PARTS, STREAMS * PARTS, PARTS, STRIDE)
    hold(tokens, FORM)
    factors = ()
    for n in tl.static_range(STREAMS):
        factors = factors + (factor_of(squares[n], hidden, eps),)
    factor = factor_of(own, hidden, eps)
    low = add_parts(values, factors, STREAMS, PARTS)
    low *= quick_sigmoid(low, FORM)
    leave_codes(tl.reshape(low, [COLUMNS, BLOCKS, 8, 4]), room, rank, COLUMNS, BLOCKS, FORM)
    near = fresh(near_raw, strength, PENDING, FORM)
    far = fresh(far_raw, strength, PENDING, FORM)
    if PENDING:
        there = (t < COLUMNS) & (token + t < tokens) & (of >= 0)
        tl.store(streams + line * hidden + of, near, mask=there)
        tl.store(streams + line * hidden + of + 8, far, mask=there)
    near *= factor * near_gamma
    far *= factor * far_gamma
    tl.debug_barrier()
    y, below = pair_sums(raws, room, rank, t, g, w, PAIRS, COLUMNS, BLOCKS, UP, FORM)
    if SCALED:
        scale = tl.load(up_scale)
        y *= scale
        below *= scale
    WIDE: tl.constexpr = STREAMS * 32 + 8  # a column's, so that lanes of four columns meet no bank twice
    later = COLUMNS * (rank // 2 + BLOCKS)
    at = later + t * WIDE + (w * 16 + g)
    leave(room, at, quick_sigmoid(y, FORM) * near, (t < COLUMNS) & (at >= 0), FORM)
    leave(room, at + 8, quick_sigmoid(below, FORM) * far, (t < COLUMNS) & (at >= 0), FORM)
    tl.debug_barrier()
    column = tl.arange(0, 4)[:, None]
    let = ()
    for n in tl.static_range(STREAMS):
        at = later + tl.minimum(column, COLUMNS - 1) * WIDE + (n * 32 + tl.arange(0, 32)[None, :])
        let = let + (found(room, at, FORM),)
    both = added(let) * (1.0 / STREAMS)
    live = (column < COLUMNS) & (token + column < tokens)
    hand_over(both, token + column, tile, live, blocks, q, d, s, numbers, FINE, FORM)


@triton.jit
def next_inject(
    partial, inject, token, hidden, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """How strongly each stream of COLUMNS tokens takes what the block will give, to inject [T, S]."""
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)[:, None]
    s = tl.arange(0, STREAMS)[None, :]
    owner = tl.minimum(token + c, tokens - 1)
    values = fetch_parts(partial, owner, STRIDE - REST + 1 + s, s >= 0, STREAMS * PARTS, STRIDE)
    factors = ()
    for n in tl.static_range(STREAMS):
        squares = fetch_squares(partial, owner, n * PARTS, STREAMS * PARTS, PARTS, STRIDE)
        factors = factors + (factor_of(squares, hidden, eps),)
    y = 2.0 * quick_sigmoid(add_parts(values, factors, STREAMS, PARTS), FORM)
    tl.store(inject + owner * STREAMS + s, y, mask=token + c < tokens)


@triton.jit
def tile_gate_kernel(
    streams, gamma, output, inject, partial, up, up_scale, outside, given, q, d, s, numbers, blocks,
    tiles, hidden, rank, tokens, eps,
    STREAMS: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, PAIRS: tl.constexpr, LOW: tl.constexpr,
    COLUMNS: tl.constexpr, WORDS: tl.constexpr, PENDING: tl.constexpr, UP: tl.constexpr, SCALED: tl.constexpr,
    FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): `mix_tile` of COLUMNS tokens; behind the tiles `next_inject`, to given [T, S]."""
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    if tile < tiles:
        room = own_room(outside, tokens * 0, WORDS, FORM)
        mix_tile(
            streams, gamma, output, inject, partial, up, up_scale, room, q, d, s, numbers, blocks,
            tile, token, hidden, rank, tokens, eps, STREAMS, PARTS, STRIDE, PAIRS, LOW, COLUMNS, PENDING, UP, SCALED,
            FINE, FORM, OVERLAP,
        )  # fmt: skip
    else:
        next_inject(partial, given, token, hidden, tokens, eps, STREAMS, PARTS, STRIDE, COLUMNS, FORM, OVERLAP)


def tile_mix(
    streams: torch.Tensor, mix: HyperMix, fine: bool, inject: torch.Tensor | None = None,
    output: torch.Tensor | None = None, cut: Cut | None = None,
) -> tuple[Quantised, torch.Tensor | None]:  # fmt: skip
    """A mix whose matrices lie in tiles: `hyper.hyper_mix` of up to 16 tokens, after `output` [T, H] was added to the
    streams [T, S, H] by inject [T, S], in place, if it is given."""
    tokens, count, hidden = streams.shape
    device, to, rank = streams.device, target(streams.device), mix.down.rows
    columns = min(triton.next_power_of_2(tokens), GROUP)
    cut = cut or cut_for(mix, columns)
    tiles, groups = hidden // 32, -(-tokens // columns)
    parts = long_parts(streams, mix, inject, output, columns, cut)
    mixed = room_for(tokens, hidden, fine, device)
    given = torch.empty(tokens, count, device=device) if mix.inject is not None else None
    low = max(triton.next_power_of_2(rank), 4 * 64 * count // columns)  # four values a thread, or more
    words = columns * (low // 2 + low // 32 + count * 32 + 8)
    tile_gate_kernel[(tiles + (0 if given is None else 1), groups)](
        streams, mix.norm, parts if output is None else output, parts if inject is None else inject, parts,
        mix.up.data, mix.up.scale_or_data,
        elsewhere(to, 1, words, device), parts if given is None else given,
        mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks, tiles, hidden, rank, tokens, mix.eps,
        STREAMS=count, PARTS=hidden // cut.size, STRIDE=parts.shape[2], PAIRS=mix.up.blocks // 2, LOW=low,
        COLUMNS=columns, WORDS=words, PENDING=output is not None, UP=mix.up.type.id,
        SCALED=mix.up.scale is not None, FINE=fine, FORM=to.form, OVERLAP=to.overlap, num_warps=2 * count, **to.options,
    )  # fmt: skip
    return mixed, given
