"""The gated delta net for prompts, in chunks of tokens: the WY form of arXiv 2412.06464.

With G the running sum of log decays within a chunk, A[i, j] = β_i e^(G_i − G_j) k_i·k_j for j < i and T = (I + A)⁻¹:
    W = T (β e^G k)    U = T (β v)    P[i, j] = e^(G_i − G_j) q_i·k_j for j ≤ i        all chunks at once
    V = U − W S        o = e^G q S + P V        S ← e^(G_last) S + kᵀ (e^(G_last − G) V)        one after the other

Factors of all products are float16: it keeps eleven bits as the tensor cores' own format for float32 does, and unlike
that is multiplied as it lies. T is found with two halves of each factor, which together hold 22 bits. Sums and the
state are float32. Values, and what is in the state, are held at the largest half.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .columns import Columns
from .gdn import L2_EPS, _softplus
from .launch import COLUMNS
from .prepare import keep_ring
from .prompt import Halves
from .state import GdnMemory
from .target import target

CHUNK = 64  # tokens
VALUES = 64  # columns of the state in one program of the last pass; half as many where shared memory is small
ROWS = 16  # tokens of a program of the first and the last launch
# Elements of a head: with fewer, the assembler of Triton 3.6 looks for later parts of four warps' products in the wrong
# place (tools/descriptors.py); two warps have their factors in registers.
NARROW = 64


@triton.jit
def _half(x):
    return tl.minimum(tl.maximum(x, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def _exact(a, b):
    """a·b of float32, with 22 bits of each."""
    a_high, b_high = a.to(tl.float16), b.to(tl.float16)
    a_low, b_low = (a - a_high.to(tl.float32)).to(tl.float16), (b - b_high.to(tl.float32)).to(tl.float16)
    return tl.dot(a_high, b_high, acc=tl.dot(a_high, b_low, acc=tl.dot(a_low, b_high)))


@triton.jit(do_not_specialize=["slot", "base", "tokens"])
def _mix_channels(
    qkv, stride, taps, conv, mixed, slot, base, tokens, q_scale, l2_eps,
    KEY_HEADS: tl.constexpr, D: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Convolution and silu of one head's channels for ROWS tokens; queries and keys to length one."""
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    channel = head * D + tl.arange(0, D)
    acc = tl.zeros([ROWS, D], tl.float32)
    for tap in tl.static_range(KERNEL):
        source = t - (KERNEL - 1 - tap)
        near = (source >= 0) & (t < tokens)
        place = source.to(tl.int64)[:, None] * stride + channel[None, :]
        fresh = tl.load(qkv + place, mask=near[:, None], other=0.0).to(tl.float32) * WIDE
        far = (source < 0) & (base + source >= 0)
        row = (slot.to(tl.int64) * RING + (base + source + RING) % RING) * CHANNELS
        fresh += tl.load(conv + row[:, None] + channel[None, :], mask=far[:, None], other=0.0)
        acc = tl.fma(fresh, tl.load(taps + tap * CHANNELS + channel)[None, :] + tl.zeros_like(acc), acc)
    acc = acc * tl.sigmoid(acc)
    if head < 2 * KEY_HEADS:
        length = tl.rsqrt(tl.sum(acc * acc, 1) + l2_eps)
        if head < KEY_HEADS:
            length = length * q_scale
        acc = acc * length[:, None]
    place = t.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(mixed + place, _half(acc), mask=(t < tokens)[:, None])


@triton.jit
def _inverse(minus, CHUNK: tl.constexpr):
    """(I − L)⁻¹ of strictly lower triangular L = `minus` [CHUNK, CHUNK].

    Blocks of 16 on the diagonal by forward substitution, all at once. With D⁻¹ of them and N the rest of −L, what
    remains is (I + D⁻¹N)⁻¹ D⁻¹, whose series ends: M = −D⁻¹N has as many powers as there are blocks.
    """
    BLOCKS: tl.constexpr = CHUNK // 16
    b = tl.arange(0, BLOCKS)
    i = tl.arange(0, 16)
    own = b[:, None, None, None] == b[None, None, :, None]
    parts = tl.reshape(minus, [BLOCKS, 16, BLOCKS, 16])
    small = tl.sum(tl.where(own, parts, 0.0), 2)  # [BLOCKS, 16, 16]
    solved = small
    for row in range(1, 16):
        this = i[None, :, None] == row
        line = tl.sum(tl.where(this, small, 0.0), 1)
        line += tl.sum(line[:, :, None] * tl.where(i[None, :, None] < row, solved, 0.0), 1)
        solved = tl.where(this, line[:, None, :], solved)
    solved += tl.where(i[None, :, None] == i[None, None, :], 1.0, 0.0)
    diagonal = tl.reshape(tl.where(own, solved[:, :, None, :], 0.0), [CHUNK, CHUNK])
    rest = tl.reshape(tl.where(own, 0.0, parts), [CHUNK, CHUNK])
    power = _exact(diagonal, rest)
    total = diagonal + _exact(power, diagonal)
    for _ in tl.static_range(BLOCKS - 2):
        total = diagonal + _exact(power, total)
    return total


@triton.jit(do_not_specialize=["tokens"])
def _solve_chunks(
    mixed, beta, alpha, beta_stride, alpha_stride, dt_bias, a, sums, w, u, p, tokens,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """W, U, P and G of one chunk of one head."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head % KEY_HEADS
    r = tl.arange(0, CHUNK)
    d = tl.arange(0, D)
    t = chunk * CHUNK + r
    live = t < tokens
    row = t.to(tl.int64)
    write = tl.sigmoid(tl.load(beta + row * beta_stride + head, mask=live, other=0.0).to(tl.float32) * WIDE)
    write = tl.where(live, write, 0.0)
    step = tl.load(alpha + row * alpha_stride + head, mask=live, other=0.0).to(tl.float32) * WIDE
    fall = tl.load(a + head) * _softplus(step + tl.load(dt_bias + head))
    run = tl.cumsum(tl.where(live, fall, 0.0), 0)
    tl.store(sums + row * HEADS + head, run, mask=live)

    source = mixed + row[:, None] * CHANNELS + d[None, :]
    k = tl.load(source + (KEY_HEADS + key_head) * D, mask=live[:, None], other=0.0)
    q = tl.load(source + key_head * D, mask=live[:, None], other=0.0)
    fade = tl.exp(tl.where(r[:, None] >= r[None, :], run[:, None] - run[None, :], 0.0))
    answers = tl.where(r[:, None] >= r[None, :], tl.dot(q, tl.trans(k)) * fade, 0.0)
    tl.store(p + (row[:, None] * HEADS + head) * CHUNK + r[None, :], answers.to(tl.float16), mask=live[:, None])
    lower = -write[:, None] * fade * tl.dot(k, tl.trans(k))
    solved = _inverse(tl.where(r[:, None] > r[None, :], lower, 0.0), CHUNK).to(tl.float16)

    # keys are read again: registers are short while the system is solved
    k = tl.load(source + (KEY_HEADS + key_head) * D, mask=live[:, None], other=0.0)
    target = row[:, None] * (HEADS * D) + head * D + d[None, :]
    scaled = (k.to(tl.float32) * (write * tl.exp(run))[:, None]).to(tl.float16)
    tl.store(w + target, tl.dot(solved, scaled).to(tl.float16), mask=live[:, None])
    v = tl.load(source + (2 * KEY_HEADS + head) * D, mask=live[:, None], other=0.0)
    v = (v.to(tl.float32) * write[:, None]).to(tl.float16)
    tl.store(u + target, _half(tl.dot(solved, v)), mask=live[:, None])


@triton.jit(do_not_specialize=["slot", "tokens"])
def _run_chunks(
    mixed, sums, w, u, p, memory, slot, tokens,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VALUES: tl.constexpr, CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """All chunks in order for some value columns of one head, whose answers take the place of U."""
    tile, head = tl.program_id(0), tl.program_id(1)
    key_head = head % KEY_HEADS
    r = tl.arange(0, CHUNK)
    d = tl.arange(0, D)
    v = tile * VALUES + tl.arange(0, VALUES)
    place = memory + ((slot.to(tl.int64) * HEADS + head) * D + d[:, None]) * D + v[None, :]
    state = tl.load(place)
    for start in range(0, tokens, CHUNK):
        t = start + r
        live = t < tokens
        row = t.to(tl.int64)
        last = tl.minimum(start + CHUNK, tokens) - 1
        run = tl.load(sums + row * HEADS + head, mask=live, other=0.0)
        end = tl.load(sums + last.to(tl.int64) * HEADS + head)
        inner = row[:, None] * (HEADS * D) + head * D
        wide = live[:, None]
        before = _half(state)
        new = tl.load(u + inner + v[None, :], mask=wide, other=0.0).to(tl.float32)
        new -= tl.dot(tl.load(w + inner + d[None, :], mask=wide, other=0.0), before)
        source = mixed + row[:, None] * CHANNELS + d[None, :]
        q = tl.load(source + key_head * D, mask=wide, other=0.0)
        answer = tl.dot(q, before) * tl.exp(run)[:, None]
        near = tl.load(p + (row[:, None] * HEADS + head) * CHUNK + r[None, :], mask=wide, other=0.0)
        narrow = _half(new)
        answer += tl.dot(near, narrow)
        tl.store(u + inner + v[None, :], answer.to(tl.float16), mask=wide)
        k = tl.load(source + (KEY_HEADS + key_head) * D, mask=wide, other=0.0)
        late = (narrow.to(tl.float32) * tl.exp(tl.where(live, end - run, 0.0))[:, None]).to(tl.float16)
        state = tl.dot(tl.trans(k), late, acc=state * tl.exp(end))
    tl.store(place, state)


@triton.jit(do_not_specialize=["tokens"])
def _gate_answers(
    answers, z, z_stride, norm, eps, tokens, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The gated norm of one head for ROWS tokens, in place."""
    t = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    d = tl.arange(0, D)
    head = tl.program_id(1)
    live = (t < tokens)[:, None]
    place = answers + (t[:, None] * HEADS + head) * D + d[None, :]
    x = tl.load(place, mask=live, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None] * tl.load(norm + d)[None, :]
    open = tl.load(z + t[:, None] * z_stride + head * D + d[None, :], mask=live, other=0.0).to(tl.float32)
    tl.store(place, _half(x * tl.sigmoid(open * WIDE)), mask=live)


def gdn_prompt(
    weights: Any, projected: tuple[torch.Tensor, ...], memory: GdnMemory, columns: Columns, eps: float,
    wide: float = 1.0,
) -> Halves:  # fmt: skip
    """The raw projections (qkv, z, beta, alpha) of a piece of a prompt to [T, heads*D]. No columns may be pending.

    wide: how much larger the projections are than what is given.
    """
    qkv, z, beta, alpha = projected
    tokens, device = len(qkv), qkv.device
    key_heads, dim = memory.k.shape[3:]
    heads, channels, ring = memory.u.shape[3], qkv.shape[1], memory.conv.shape[1]
    to = target(device)
    stages = 3 if to.stages > 1 and to.overlap else to.stages  # 205 KB of shared memory
    values = min(VALUES if stages > 1 else VALUES // 2, dim)
    warps = 4 if dim >= NARROW else 2
    options = {"maxnreg": 168} if to.overlap and warps == 4 else {}  # three programs share a multiprocessor

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.float16, device=device)

    mixed, sums = empty(tokens, channels), torch.empty(tokens, heads, device=device)
    w, u, p = empty(tokens, heads * dim), empty(tokens, heads * dim), empty(tokens, heads, CHUNK)
    rows = -(-tokens // ROWS)
    _mix_channels[(rows, channels // dim)](
        qkv, qkv.stride(0), weights.conv, memory.conv, mixed, columns.slot, columns.start, tokens, dim**-0.5, L2_EPS,
        KEY_HEADS=key_heads, D=dim, CHANNELS=channels, KERNEL=ring - COLUMNS + 1, RING=ring, ROWS=ROWS,
        WIDE=wide, num_warps=4,
    )  # fmt: skip
    last = qkv[max(tokens - ring + COLUMNS, 0) :].float() * wide
    keep_ring(last, memory.conv, columns.slot, columns.start + tokens - len(last), ring - COLUMNS)
    _solve_chunks[(-(-tokens // CHUNK), heads)](
        mixed, beta, alpha, beta.stride(0), alpha.stride(0), weights.dt_bias, weights.a, sums, w, u, p, tokens,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, CHANNELS=channels, CHUNK=CHUNK, WIDE=wide,
        num_warps=warps, **options,
    )  # fmt: skip
    _run_chunks[(dim // values, heads)](
        mixed, sums, w, u, p, memory.memory, columns.slot, tokens,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, VALUES=values, CHANNELS=channels, CHUNK=CHUNK, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
    _gate_answers[(rows, heads)](
        u, z, z.stride(0), weights.norm, eps, tokens, HEADS=heads, D=dim, ROWS=ROWS, WIDE=wide, num_warps=4,
    )  # fmt: skip
    return Halves(u)
