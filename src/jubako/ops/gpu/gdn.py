"""The gated delta net for a step's columns: convolution, norms, gates, the delta rule and the gated norm in one launch.

A program takes one part's columns for one head. It reads the head's state once, enters what was kept of the last step
(small factors: k, u and the decay of each column), writes it once, and goes on through the new columns in registers
only, leaving their factors for the next step. So refusing columns costs nothing.

What a column needs that does not depend on the state is made for GROUP columns side by side, a warp each, and passed on
(room.py). Then one column after the other, with sums over the state's rows
    o = Sᵀq after S ← e^g S + k uᵀ    as    e^g Sᵀq + (k·q) u    and    u = β (v − e^g Sᵀk)
so that both sums come from one pass over the state. Products are contracted into them: one program serves any number
of columns, so that a column's bits do not depend on it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for
from .columns import BASE, COUNT, FIRST, PARITY, PART_SLOT, PENDING, Columns
from .gdn_inputs import convolved, fetch_earlier, fetch_raw, fetch_taps, keep_raw, nothing_of
from .gdn_output import fetch_gate, gated_norm
from .launch import COLUMNS, overlapped, power_of_two, without_overlap
from .room import elsewhere, found, leave, own_room
from .state import GdnMemory
from .target import release, target, wait

WARPS = 8
LARGEST = 128  # rows and columns of a head's state: 64 registers a thread
L2_EPS = 1e-6


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _places(D: tl.constexpr):
    """Rows [16, 1, D/16, 1] and columns [1, D/8, 1, 8] of the state as programs hold it.

    Lanes share the first axis, warps the second, so that sums over rows stay inside of a warp; rows of lanes side by
    side follow each other.
    """
    high: tl.constexpr = D // 16
    row = tl.arange(0, 16)[:, None, None, None] + tl.arange(0, high)[None, None, :, None] * 16
    column = tl.arange(0, D // 8)[None, :, None, None] * 8 + tl.arange(0, 8)[None, None, None, :]
    return row, column


@triton.jit
def _over_rows(x):
    """The sum over the state's rows: [16, V, R, 8] to [1, V, 1, 8]."""
    return tl.sum(tl.sum(x, 2, keep_dims=True), 0, keep_dims=True)


@triton.jit
def _entered(state, k, u, decay):
    """S ← decay S + k uᵀ, with the same roundings wherever it is done: the compiler may fuse nothing more."""
    zero = tl.zeros_like(state)
    return tl.fma(k + zero, u + zero, state * decay)


@triton.jit
def _with_past(
    memory, past_k, past_u, past_decay, slot, head, key_head, i, v, old, pending,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Rows i, columns v of a head's state, after what is kept of the last step was entered; also stored."""
    place = memory + ((slot * HEADS + head) * D + i) * D + v
    state = tl.load(place)
    kept = _kept(past_k, past_u, past_decay, head, key_head, i, v, old, pending > 0, KEY_HEADS, HEADS, D)
    for column in range(0, pending):
        k, u, decay = kept
        following = old + column + 1  # on its way while this one is entered
        more = column + 1 < pending
        kept = _kept(past_k, past_u, past_decay, head, key_head, i, v, following, more, KEY_HEADS, HEADS, D)
        state = _entered(state, k, u, decay)
    tl.store(place, state)
    return state


@triton.jit
def _kept(
    past_k, past_u, past_decay, head, key_head, i, v, column, there,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What was kept of a column, on its way: k, u and the decay; zeros if it is not there."""
    k = tl.load(past_k + (column * KEY_HEADS + key_head) * D + i, mask=there & (i >= 0), other=0.0)
    u = tl.load(past_u + (column * HEADS + head) * D + v, mask=there & (v >= 0), other=0.0)
    return k, u, tl.load(past_decay + column * HEADS + head, mask=there, other=0.0)


@triton.jit
def _fetched(room, column, i, v, D: tl.constexpr, FORM: tl.constexpr):
    """What the delta rule wants of a column, on its way: q, k, v, k·q, β, the decay."""
    at = column * (4 * D + 4)
    q = found(room, at + i, FORM)
    k = found(room, at + D + i, FORM)
    value = found(room, at + 2 * D + v, FORM)
    few = at + 4 * D
    product, write = found(room, few, FORM), found(room, few + 1, FORM)
    return q, k, value, product, write, found(room, few + 2, FORM)


@triton.jit
def _answered(state, column):
    """u and the answer of a column (`_fetched`) that meets the state [16, V, R, 8]: [1, V, 1, 8] each."""
    q, k, value, product, write, decay = column
    u = write * (value - decay * _over_rows(state * k))
    return u, decay * _over_rows(state * q) + product * u


@triton.jit
def _gdn_columns(
    qkv, z, beta, alpha, qkv_stride, z_stride, beta_stride, alpha_stride,
    taps, dt_bias, a, norm, memory, conv, past_k, past_u, past_decay, own, parts, eps, q_scale, l2_eps,
    out_q, out_d, out_s, out_x, out_blocks,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, RING: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr, PARITY: tl.constexpr,
    QUANTISED: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (head, part), of up to WIDTH columns. own [tokens, heads, 4 D + 4]: a head's q, k, v,
    answer, k·q, β and decay of each column, if they don't lie in shared memory."""
    release(OVERLAP)
    head, part = tl.program_id(0), tl.program_id(1)
    count = tl.load(parts + COUNT * COLUMNS + part)
    if count > 0:
        slot = tl.load(parts + PART_SLOT * COLUMNS + part).to(tl.int64)
        base = tl.load(parts + BASE * COLUMNS + part)
        first = tl.load(parts + FIRST * COLUMNS + part).to(tl.int64)
        pending = tl.load(parts + PENDING * COLUMNS + part)
        parity = tl.load(parts + PARITY * COLUMNS + part)
        key_head = head % KEY_HEADS
        i, v = _places(D)
        old = (slot * 2 + 1 - parity) * COLUMNS
        state = _with_past(memory, past_k, past_u, past_decay, slot, head, key_head, i, v, old, pending,
                           KEY_HEADS, HEADS, D)  # fmt: skip
        rate, bias = tl.load(a + head), tl.load(dt_bias + head)
        element = tl.arange(0, D)[None, :]
        q_at = key_head * D + element
        k_at = KEY_HEADS * D + q_at
        v_at = (2 * KEY_HEADS + head) * D + element
        several = tl.arange(0, GROUP)[:, None]
        q_taps = fetch_taps(taps, q_at, several, CHANNELS, KERNEL)
        k_taps = fetch_taps(taps, k_at, several, CHANNELS, KERNEL)
        v_taps = fetch_taps(taps, v_at, several, CHANNELS, KERNEL)
        q_old = fetch_earlier(conv, slot, base, q_at, several, several < count, CHANNELS, KERNEL, RING)
        k_old = fetch_earlier(conv, slot, base, k_at, several, several < count, CHANNELS, KERNEL, RING)
        v_old = fetch_earlier(conv, slot, base, v_at, several, several < count, CHANNELS, KERNEL, RING)
        weight = tl.load(norm + element)
        wait(OVERLAP)  # nothing above was written by the launches before this one

        new = (slot * 2 + parity) * COLUMNS
        EACH: tl.constexpr = 4 * D + 4
        room = own_room(own + (first * HEADS + head * count) * EACH, 0, WIDTH * EACH, FORM)
        owns_keys = head < KEY_HEADS
        gate = fetch_gate(z, z_stride, first + tl.arange(0, GROUP), tl.arange(0, GROUP) < count, head, D)
        for start in range(0, count, GROUP):
            several = start + tl.arange(0, GROUP)[:, None]
            live = several < count
            row = first + several
            # all loads before the first store, which waits for one of them
            open = tl.load(beta + row * beta_stride + head, mask=live, other=0.0).to(tl.float32)
            step = tl.load(alpha + row * alpha_stride + head, mask=live, other=0.0).to(tl.float32)
            q_raw = fetch_raw(qkv, qkv_stride, q_at, first, several, live, q_old, KERNEL)
            k_raw = fetch_raw(qkv, qkv_stride, k_at, first, several, live, k_old, KERNEL)
            v_raw = fetch_raw(qkv, qkv_stride, v_at, first, several, live, v_old, KERNEL)
            qs = convolved(q_raw, q_taps, KERNEL)
            ks = convolved(k_raw, k_taps, KERNEL)
            vs = convolved(v_raw, v_taps, KERNEL)
            q_old, k_old, v_old = nothing_of(q_old), nothing_of(k_old), nothing_of(v_old)
            qs = qs * (tl.rsqrt(tl.sum(qs * qs, 1) + l2_eps) * q_scale)[:, None]
            ks = ks * tl.rsqrt(tl.sum(ks * ks, 1) + l2_eps)[:, None]
            at = several * EACH + element
            leave(room, at, qs, live, FORM)
            leave(room, at + D, ks, live, FORM)
            leave(room, at + 2 * D, vs, live, FORM)
            tl.store(past_k + ((new + several) * KEY_HEADS + head) * D + element, ks, mask=live & owns_keys)
            decay = tl.exp(rate * _softplus(step + bias))
            few = several * EACH + 4 * D
            leave(room, few, tl.sum(ks * qs, 1, keep_dims=True), live, FORM)
            leave(room, few + 1, tl.sigmoid(open), live, FORM)
            leave(room, few + 2, decay, live, FORM)
            tl.store(past_decay + (new + several) * HEADS + head, decay, mask=live)
            keep_raw(conv, slot, base, q_at, several, live & owns_keys, q_raw[KERNEL - 1], CHANNELS, RING)
            keep_raw(conv, slot, base, k_at, several, live & owns_keys, k_raw[KERNEL - 1], CHANNELS, RING)
            keep_raw(conv, slot, base, v_at, several, live, v_raw[KERNEL - 1], CHANNELS, RING)
        tl.debug_barrier()

        lane = tl.arange(0, 16)[:, None, None, None] + v * 0  # all lanes have the sums; the first ones store them
        alike = lane.to(tl.float32) * 0.0
        answer_at = 3 * D + v + lane * 0
        u_at = past_u + (new * HEADS + head) * D + v + lane * 0
        column = _fetched(room, 0, i, v, D, FORM)
        for n in range(0, count):
            following = _fetched(room, tl.minimum(n + 1, count - 1), i, v, D, FORM)
            u, answer = _answered(state, column)
            if n + 1 < count:
                state = _entered(state, column[1], u, column[5])
            column = following
            leave(room, answer_at + n * EACH, answer + alike, lane == 0, FORM)
            tl.store(u_at + n * HEADS * D, u + alike, mask=lane == 0)

        tl.debug_barrier()
        for start in range(0, count, GROUP):
            columns = start + tl.arange(0, GROUP)
            row, live = first + columns, columns < count
            if start > 0:
                gate = fetch_gate(z, z_stride, row, live, head, D)
            answer = found(room, tl.minimum(columns, count - 1)[:, None] * EACH + 3 * D + element, FORM)
            gated_norm(answer, gate, weight, row, live, head, eps, out_q, out_d, out_s, out_x, out_blocks,
                        GROUP, HEADS, D, QUANTISED)  # fmt: skip
    elif part == 0:  # programs of other parts end at once
        wait(OVERLAP)


@triton.jit(do_not_specialize=["slot", "pending", "parity"])
def _settle(
    memory, past_k, past_u, past_decay, slot, pending, parity,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    i, v = _places(D)
    slot = slot.to(tl.int64)
    _with_past(memory, past_k, past_u, past_decay, slot, head, head % KEY_HEADS, i, v,
               (slot * 2 + 1 - parity) * COLUMNS, pending, KEY_HEADS, HEADS, D)  # fmt: skip


def gdn_columns(
    weights: Any, projected: tuple[torch.Tensor, ...], memory: GdnMemory, columns: Columns, eps: float
) -> torch.Tensor | Quantised:
    """The raw projections (qkv, z, beta, alpha) of a step's columns to [T, heads*D], quantised where blocks fit."""
    qkv, z, beta, alpha = projected
    tokens = len(qkv)
    key_heads, dim = memory.k.shape[3:]
    heads = memory.u.shape[3]
    assert dim <= LARGEST, f"heads of {dim} x {dim} do not fit a program"
    to = target(qkv.device)
    own = elsewhere(to, tokens * heads, 4 * dim + 4, qkv.device)
    out = (
        room_for(tokens, heads * dim, True, qkv.device)
        if dim % 32 == 0
        else torch.empty(tokens, heads * dim, device=qkv.device)
    )
    places = (out.q, out.d, out.s, out.x, out.blocks) if isinstance(out, Quantised) else (out, out, out, out, 0)
    _gdn_columns[(heads, tokens)](
        qkv, z, beta, alpha, qkv.stride(0), z.stride(0), beta.stride(0), alpha.stride(0),
        weights.conv, weights.dt_bias, weights.a, weights.norm,
        memory.memory, memory.conv, memory.k, memory.u, memory.decay, own, columns.parts,
        eps, dim**-0.5, L2_EPS, *places,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, GROUP=WARPS, CHANNELS=qkv.shape[1],
        KERNEL=memory.conv.shape[1] - COLUMNS + 1, RING=memory.conv.shape[1], COLUMNS=COLUMNS,
        FIRST=FIRST, COUNT=COUNT, PART_SLOT=PART_SLOT, BASE=BASE, PENDING=PENDING, PARITY=PARITY,
        QUANTISED=isinstance(out, Quantised), WIDTH=power_of_two(tokens), FORM=to.form, OVERLAP=to.overlap,
        num_warps=WARPS, **overlapped(qkv.device),
    )  # fmt: skip
    return out


def settle(memory: GdnMemory, slot: int, pending: int, parity: int) -> None:
    """Enter the kept columns of the last step into the state. parity: of the step that would come next."""
    key_heads, dim = memory.k.shape[3:]
    heads = memory.u.shape[3]
    _settle[(heads,)](
        memory.memory, memory.k, memory.u, memory.decay, slot, pending, parity,
        KEY_HEADS=key_heads, HEADS=heads, D=dim, COLUMNS=COLUMNS, num_warps=WARPS,
        **without_overlap(memory.memory.device),
    )  # fmt: skip
