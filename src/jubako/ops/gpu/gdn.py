"""The gated delta net for a step's columns: convolution, norms, gates, the delta rule and the gated norm in one launch.

A program takes one part's columns for some value columns of one head's state. It reads the state once, enters what was
kept of the last step (small factors: k, u and the decay of each column), writes it once, and goes on through the new
columns in registers only, leaving their factors for the next step. So refusing columns costs nothing.
The norm needs the whole head: the last program of a head to finish takes that part.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, store_blocks
from .columns import BASE, COUNT, FIRST, PARITY, PART_SLOT, PENDING, Columns
from .launch import COLUMNS, without_overlap
from .state import GdnMemory
from .target import release, target, wait

VALUES, WARPS = 32, 4  # columns of the state in one program
L2_EPS = 1e-6


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _convolved(
    qkv, stride, taps, conv, slot, base, first, column, channel,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """silu of the causal convolution of some channels at one column. Earlier columns lie in the ring."""
    acc = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        back = KERNEL - 1 - tap
        near = column >= back
        position = base + column - back
        fresh = tl.load(qkv + (first + column - back) * stride + channel, mask=near & (channel >= 0), other=0.0)
        row = (slot * RING + (position + RING) % RING) * CHANNELS
        old = tl.load(conv + row + channel, mask=(near == 0) & (position >= 0) & (channel >= 0), other=0.0)
        acc = tl.fma(tl.where(near, fresh.to(tl.float32), old), tl.load(taps + channel * KERNEL + tap), acc)
    return acc * tl.sigmoid(acc)


@triton.jit
def _keep_column(qkv, stride, conv, slot, base, first, column, channel, CHANNELS: tl.constexpr, RING: tl.constexpr):
    """The raw channels of one column into the ring."""
    raw = tl.load(qkv + (first + column) * stride + channel).to(tl.float32)
    tl.store(conv + (slot * RING + (base + column) % RING) * CHANNELS + channel, raw)


@triton.jit
def _entered(state, k, u, decay):
    """S ← decay S + k uᵀ, with the same roundings wherever it is done: the compiler may fuse nothing more."""
    zero = tl.zeros_like(state)
    return tl.fma(k[:, None] + zero, u[None, :] + zero, state * decay)


@triton.jit
def _gdn_columns(
    qkv, z, beta, alpha, qkv_stride, z_stride, beta_stride, alpha_stride,
    taps, dt_bias, a, norm, memory, conv, past_k, past_u, past_decay, answers, arrived, parts, eps, q_scale, l2_eps,
    out_q, out_d, out_s, out_x, out_blocks,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VALUES: tl.constexpr, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, RING: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr, PARITY: tl.constexpr,
    QUANTISED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    release(OVERLAP)
    part, head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    count = tl.load(parts + COUNT * COLUMNS + part)
    if count > 0:
        slot = tl.load(parts + PART_SLOT * COLUMNS + part).to(tl.int64)
        base = tl.load(parts + BASE * COLUMNS + part)
        first = tl.load(parts + FIRST * COLUMNS + part).to(tl.int64)
        pending = tl.load(parts + PENDING * COLUMNS + part)
        parity = tl.load(parts + PARITY * COLUMNS + part)
        key_head = head % KEY_HEADS
        i = tl.arange(0, D)
        v = tile * VALUES + tl.arange(0, VALUES)
        place = memory + ((slot * HEADS + head) * D + i[:, None]) * D + v[None, :]
        state = tl.load(place)
        old = (slot * 2 + 1 - parity) * COLUMNS
        for column in range(0, pending):
            k = tl.load(past_k + ((old + column) * KEY_HEADS + key_head) * D + i)
            u = tl.load(past_u + ((old + column) * HEADS + head) * D + v)
            state = _entered(state, k, u, tl.load(past_decay + (old + column) * HEADS + head))
        tl.store(place, state)
        wait(OVERLAP)  # nothing above was written by the launches before this one

        new = (slot * 2 + parity) * COLUMNS
        rate, bias = tl.load(a + head), tl.load(dt_bias + head)
        owns_keys = (tile == 0) & (head < KEY_HEADS)
        for column in range(0, count):
            q = _convolved(qkv, qkv_stride, taps, conv, slot, base, first, column, key_head * D + i,
                           CHANNELS, KERNEL, RING)  # fmt: skip
            k = _convolved(qkv, qkv_stride, taps, conv, slot, base, first, column, (KEY_HEADS + key_head) * D + i,
                           CHANNELS, KERNEL, RING)  # fmt: skip
            value = _convolved(qkv, qkv_stride, taps, conv, slot, base, first, column, (2 * KEY_HEADS + head) * D + v,
                               CHANNELS, KERNEL, RING)  # fmt: skip
            q = q * (tl.rsqrt(tl.sum(q * q, 0) + l2_eps) * q_scale)
            k = k * tl.rsqrt(tl.sum(k * k, 0) + l2_eps)
            row = first + column
            write = tl.sigmoid(tl.load(beta + row * beta_stride + head).to(tl.float32))
            step = _softplus(tl.load(alpha + row * alpha_stride + head).to(tl.float32) + bias)
            decay = tl.exp(rate * step)
            recalled = tl.sum((state * decay) * k[:, None], 0)
            u = write * (value - recalled)
            state = _entered(state, k, u, decay)
            tl.store(answers + (row * HEADS + head) * D + v, tl.sum(state * q[:, None], 0))
            tl.store(past_u + ((new + column) * HEADS + head) * D + v, u)
            if tile == 0:
                tl.store(past_decay + (new + column) * HEADS + head, decay)
            if owns_keys:
                tl.store(past_k + ((new + column) * KEY_HEADS + head) * D + i, k)
                _keep_column(qkv, qkv_stride, conv, slot, base, first, column, head * D + i, CHANNELS, RING)
                channel = (KEY_HEADS + head) * D + i
                _keep_column(qkv, qkv_stride, conv, slot, base, first, column, channel, CHANNELS, RING)
            own = (2 * KEY_HEADS + head) * D + v
            _keep_column(qkv, qkv_stride, conv, slot, base, first, column, own, CHANNELS, RING)

        tl.debug_barrier()
        before = tl.atomic_add(arrived + part * HEADS + head, 1, sem="acq_rel")
        if before == D // VALUES - 1:
            tl.store(arrived + part * HEADS + head, 0)
            gamma = tl.load(norm + i)
            for column in range(0, count):
                row = first + column
                answer = tl.load(answers + (row * HEADS + head) * D + i, volatile=True)
                answer = answer * tl.rsqrt(tl.sum(answer * answer, 0) / D + eps) * gamma
                open = tl.sigmoid(tl.load(z + row * z_stride + head * D + i).to(tl.float32))
                if QUANTISED:
                    store_blocks(tl.reshape(answer * open, [D // 32, 32]), row, head * (D // 32), out_blocks,
                                 out_q, out_d, out_s, out_x, D // 32, True)  # fmt: skip
                else:
                    tl.store(out_x + (row * HEADS + head) * D + i, answer * open)
    else:
        wait(OVERLAP)


@triton.jit(do_not_specialize=["slot", "pending", "parity"])
def _settle(
    memory, past_k, past_u, past_decay, slot, pending, parity,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head, tile = tl.program_id(1), tl.program_id(0)
    i = tl.arange(0, D)
    v = tile * VALUES + tl.arange(0, VALUES)
    place = memory + ((slot.to(tl.int64) * HEADS + head) * D + i[:, None]) * D + v[None, :]
    state = tl.load(place)
    old = (slot.to(tl.int64) * 2 + 1 - parity) * COLUMNS
    for column in range(0, pending):
        k = tl.load(past_k + ((old + column) * KEY_HEADS + head % KEY_HEADS) * D + i)
        u = tl.load(past_u + ((old + column) * HEADS + head) * D + v)
        state = _entered(state, k, u, tl.load(past_decay + (old + column) * HEADS + head))
    tl.store(place, state)


def gdn_columns(
    weights: Any, projected: tuple[torch.Tensor, ...], memory: GdnMemory, columns: Columns,
    arrived: torch.Tensor, eps: float,
) -> torch.Tensor | Quantised:  # fmt: skip
    """The raw projections (qkv, z, beta, alpha) of a step's columns to [T, heads*D], quantised where blocks fit heads.

    arrived: int32 [16 * heads], zero before and after.
    """
    qkv, z, beta, alpha = projected
    tokens = len(qkv)
    key_heads, dim = memory.k.shape[3:]
    heads = memory.u.shape[3]
    answers = torch.empty(tokens, heads * dim, dtype=torch.float32, device=qkv.device)
    out = room_for(tokens, heads * dim, True, qkv.device) if dim % 32 == 0 else torch.empty_like(answers)
    places = (out.q, out.d, out.s, out.x, out.blocks) if isinstance(out, Quantised) else (out, out, out, out, 0)
    to = target(qkv.device)
    values = min(VALUES, dim)
    _gdn_columns[(dim // values, heads, tokens)](
        qkv, z, beta, alpha, qkv.stride(0), z.stride(0), beta.stride(0), alpha.stride(0),
        weights.conv, weights.dt_bias, weights.a, weights.norm,
        memory.memory, memory.conv, memory.k, memory.u, memory.decay, answers, arrived, columns.parts,
        eps, dim**-0.5, L2_EPS, *places,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, VALUES=values, CHANNELS=qkv.shape[1],
        KERNEL=memory.conv.shape[1] - COLUMNS + 1, RING=memory.conv.shape[1], COLUMNS=COLUMNS,
        FIRST=FIRST, COUNT=COUNT, PART_SLOT=PART_SLOT, BASE=BASE, PENDING=PENDING, PARITY=PARITY,
        QUANTISED=isinstance(out, Quantised), OVERLAP=to.overlap, num_warps=WARPS, **to.options,
    )  # fmt: skip
    return out


def settle(memory: GdnMemory, slot: int, pending: int, parity: int) -> None:
    """Enter the kept columns of the last step into the state. parity: of the step that would come next."""
    key_heads, dim = memory.k.shape[3:]
    heads = memory.u.shape[3]
    values = min(VALUES, dim)
    _settle[(dim // values, heads)](
        memory.memory, memory.k, memory.u, memory.decay, slot, pending, parity,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, VALUES=values, COLUMNS=COLUMNS, num_warps=4,
        **without_overlap(memory.memory.device),
    )  # fmt: skip
