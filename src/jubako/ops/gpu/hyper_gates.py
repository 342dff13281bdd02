"""A hyper-connection's gates by tensor cores: the wide product, from rank values to a gate for each element of each
stream, and the mean over the streams of what the gates let through.

A program makes 32 hidden values of up to four tokens; each quantises all rank values for itself.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, rounded, store_each
from .blocks import half
from .integer import fma
from .matrix import Matrix
from .target import release, target, wait
from .tensor import block_dots, column_words, fetch_both, words_of

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
def pair_sums(raws, q, d, blocks, t, g, w, PAIRS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Products of sixteen rows with COLUMNS finely quantised columns, added up as `products.tree` does it: two of
    float32 [t = column, g, w], of rows and of those eight below."""
    low = column_words(q, blocks, t, g + w * 0)
    live = (g // 2 < COLUMNS) & (t + w >= 0)
    near = d + (tl.minimum(t, COLUMNS - 1) * blocks + (g + w) * 0)
    zero = tl.zeros([4, 8, w.shape[2]], tl.float32)
    sums = ((zero, zero, zero, zero), (zero, zero, zero, zero), (zero, zero, zero, zero), (zero, zero, zero, zero))
    for i in tl.static_range(PAIRS):
        row, below = words_of(raws[i][0]), words_of(raws[i][1])
        first = tl.split(tl.load(low + i * 8, mask=live[:, :, :, None], other=0))
        second = tl.split(tl.load(low + (i * 8 + 4), mask=live[:, :, :, None], other=0))
        dots = block_dots(row, below, first + second, FORM)
        d0, d1 = tl.load(near + 2 * i), tl.load(near + (2 * i + 1))
        scale, scale_below = raws[i][2], raws[i][3]
        after = (
            fma(dots[0].to(tl.float32), half(scale) * d0, sums[0][0], FORM),
            fma(dots[1].to(tl.float32), half(scale_below) * d0, sums[0][1], FORM),
            fma(dots[2].to(tl.float32), half(scale >> 16) * d1, sums[0][2], FORM),
            fma(dots[3].to(tl.float32), half(scale_below >> 16) * d1, sums[0][3], FORM),
        )
        sums = (sums[1], sums[2], sums[3], after)
    a, b, c, e = sums[-PAIRS % 4], sums[(1 - PAIRS) % 4], sums[(2 - PAIRS) % 4], sums[(3 - PAIRS) % 4]
    y = ((a[0] + c[0]) + (b[0] + e[0])) + ((a[2] + c[2]) + (b[2] + e[2]))
    return y, ((a[1] + c[1]) + (b[1] + e[1])) + ((a[3] + c[3]) + (b[3] + e[3]))


@triton.jit
def quantise_low(low, stride, tokens, rank, token, q, d, blocks, mine, COLUMNS: tl.constexpr, LOW_BLOCKS: tl.constexpr):
    """The rank values of COLUMNS tokens as columns `mine` on of q and d, a `Quantised` without sums and numbers."""
    n = tl.arange(0, COLUMNS * LOW_BLOCKS)
    block = n % LOW_BLOCKS
    r = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    owner = tl.minimum(token + n // LOW_BLOCKS, tokens - 1)
    values = tl.load(low + owner[:, None] * stride + r, mask=r < rank, other=0.0)
    codes, scale = quick_codes(values)
    k = tl.arange(0, 32)[None, :]
    column = mine + n // LOW_BLOCKS
    there = block * 32 < rank
    high = (codes + 128) >> 8
    at = q + (((column * 4)[:, None] + k // 16) * blocks * 16 + block[:, None] * 16 + k % 16)
    tl.store(at, (codes - (high << 8)).to(tl.int8), mask=there[:, None])
    tl.store(at + blocks * 32, high.to(tl.int8), mask=there[:, None])
    tl.store(d + column * blocks + block, scale, mask=there)


@triton.jit
def tile_gate_kernel(
    streams, gamma, low, stride, inverse, up, up_scale, low_q, low_d, low_blocks,
    q, d, s, numbers, blocks, hidden, rank, tokens,
    STREAMS: tl.constexpr, PAIRS: tl.constexpr, LOW_BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,
    FINE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, g): the mixed hidden values of 32 elements of up to COLUMNS tokens, quantised; up in tiles.

    A warp has sixteen elements of one stream. low_q, low_d: room for COLUMNS rows of rank values for every program.
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    token = tl.program_id(1) * COLUMNS
    t = tl.arange(0, 4)[:, None, None]
    g = tl.arange(0, 8)[None, :, None] * 9 % 8  # so that the compiler sees no runs and leaves t + 4·g to the lanes
    w = tl.arange(0, 2 * STREAMS)[None, None, :]
    stream = w // 2
    element = tile * 32 + w % 2 * 16
    raws = fetch_pairs(up, STREAMS * hidden, PAIRS, stream * hidden + element, t, g, PAIRS)
    of = stream * hidden + element + g
    near_gamma, far_gamma = tl.load(gamma + of), tl.load(gamma + of + 8)
    wait(OVERLAP)
    mine = (tl.program_id(1) * tl.num_programs(0) + tile) * COLUMNS
    quantise_low(low, stride, tokens, rank, token, low_q, low_d, low_blocks, mine, COLUMNS, LOW_BLOCKS)
    line = tl.minimum(token + t, tokens - 1) * STREAMS
    factor = tl.load(inverse + (line + stream))
    at = streams + (line * hidden + of)
    near, far = tl.load(at) * factor * near_gamma, tl.load(at + 8) * factor * far_gamma
    tl.debug_barrier()
    y, below = pair_sums(
        raws, low_q + mine * 4 * low_blocks * 16, low_d + mine * low_blocks, low_blocks, t, g, w, PAIRS, COLUMNS,
        FORM,
    )  # fmt: skip
    if SCALED:
        factor = tl.load(up_scale)
        y *= factor
        below *= factor
    let = tl.join(quick_sigmoid(y, FORM) * near, quick_sigmoid(below, FORM) * far)
    sums = tl.sum(tl.reshape(let, [4, 8, STREAMS, 2, 2]), axis=2)  # column, g, half, below
    both = tl.reshape(tl.permute(sums, [0, 2, 3, 1]), [4, 32]) * (1.0 / STREAMS)
    c = tl.arange(0, 4)
    live = (c < COLUMNS) & (token + c < tokens)
    store_each(both, token + c, tile + 0 * c, live, blocks, q, d, s, numbers, FINE, True)


def tile_gates(
    streams: torch.Tensor, gamma: torch.Tensor, up: Matrix, low: torch.Tensor, inverse: torch.Tensor, fine: bool
) -> Quantised:
    """The mixed hidden values of streams [T, S, H], up to 16 tokens, quantised; low [T, rank up to 32] as the long
    product leaves it, inverse [T, S]: 1 / root mean squares of the streams."""
    tokens, count, hidden = streams.shape
    device, to, rank = streams.device, target(streams.device), up.cols
    columns = min(triton.next_power_of_2(tokens), GROUP)
    mixed = room_for(tokens, hidden, fine, device)
    tiles, groups = hidden // 32, -(-tokens // columns)
    own = room_for(groups * tiles * columns, rank, True, device)
    tile_gate_kernel[(tiles, groups)](
        streams, gamma, low, low.stride(0), inverse, up.data, up.scale_or_data, own.q, own.d, own.blocks,
        mixed.q, mixed.d, mixed.s, mixed.x, mixed.blocks, hidden, rank, tokens,
        STREAMS=count, PAIRS=up.blocks // 2, LOW_BLOCKS=triton.next_power_of_2(up.blocks), COLUMNS=columns,
        SCALED=up.scale is not None, FINE=fine, FORM=to.form, OVERLAP=to.overlap, num_warps=2 * count, **to.options,
    )  # fmt: skip
    return mixed
