"""What comes before attention, in one launch: norms, rotation, the cache's new rows, the index keys' blocks.

A program takes one head of one token: query heads, key heads, value heads, then (with an indexer) the index key and
the index query heads.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from .columns import Columns
from .launch import overlapped, power_of_two
from .rope import norm_weights, normed, partner_of, rotated, turn_of
from .state import PAGE, AttentionMemory
from .target import release, target, wait


@triton.jit
def round_half_even(x):
    """To the nearest whole number, for magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _store_row(x, i, row, codes, scales, D: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr):
    """x [D] into row `row` of the cache."""
    if BITS == 8:
        group: tl.constexpr = D // GROUPS
        blocks = tl.reshape(x, [GROUPS, group])
        scale = tl.max(tl.abs(blocks), 1) / 127.0
        inverse = tl.where(scale > 0.0, 1.0 / scale, 0.0)
        code = tl.minimum(tl.maximum(blocks * inverse[:, None], -127.0), 127.0)
        g = tl.arange(0, GROUPS)
        place = g[:, None] * group + tl.arange(0, group)[None, :]
        tl.store(codes + row * D + place, round_half_even(code).to(tl.int8))
        tl.store(scales + row * GROUPS + g, scale)
    else:
        top = tl.max(tl.abs(x), 0)
        exponent = tl.maximum(tl.ceil(tl.log2(tl.maximum(top, 1.0) / 32768.0)), 0.0)
        scale = tl.exp2(exponent)
        tl.store(codes + row * D + i, (x / scale).to(tl.float16))
        tl.store(scales + row, scale)


@triton.jit
def _query_head(
    q, gamma, queries, gate, t, unit, position, frequencies, magnitude, eps,
    HEADS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One query head and its gate."""
    i = tl.arange(0, D)
    weights = norm_weights(gamma, i, D, PAIRS)
    turn = turn_of(i, position, frequencies, magnitude, PAIRS)
    wait(EARLY)
    row = q + unit * 2 * D
    open = tl.load(row + D + i).to(tl.float32)
    x, partner = normed(row, weights, i, D, eps, PAIRS)
    place = (t * HEADS + unit) * D + i
    tl.store(queries + place, rotated(x, partner, i, turn, PAIRS))
    tl.store(gate + place, open)


@triton.jit
def _cache_row(
    k, v, gamma, codes, scales, page, unit, position, frequencies, magnitude, eps,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    PAGE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One key (units below KV_HEADS) or value head into the cache."""
    i = tl.arange(0, D)
    head = unit % KV_HEADS
    row = (page * KV_HEADS + head) * 2 * PAGE + position % PAGE
    if unit < KV_HEADS:
        weights = norm_weights(gamma, i, D, PAIRS)
        turn = turn_of(i, position, frequencies, magnitude, PAIRS)
        wait(EARLY)
        x, partner = normed(k + head * D, weights, i, D, eps, PAIRS)
        _store_row(rotated(x, partner, i, turn, PAIRS), i, row, codes, scales, D, GROUPS, BITS)
    else:
        wait(EARLY)
        _store_row(tl.load(v + head * D + i).to(tl.float32), i, row + PAGE, codes, scales, D, GROUPS, BITS)


@triton.jit
def _earlier(raw, slots, positions, t, slot, position, i, RATIO: tl.constexpr, RING: tl.constexpr, D: tl.constexpr):
    """Of a block whose last token is `t`, its tokens in their order: whether each is a column of this call, and if not,
    elements i of its raw key from the ring."""
    columns = ()
    keys = ()
    for back in tl.static_range(RATIO - 1, -1, -1):
        source = tl.maximum(t - back, 0)
        here = (tl.load(slots + source) == slot) & (tl.load(positions + source) == position - back)
        far = raw + (slot.to(tl.int64) * RING + (position - back) % RING) * D
        columns = columns + (here,)
        keys = keys + (tl.load(far + i, mask=(here == 0) & (i < D), other=0.0),)
    return columns, keys


@triton.jit
def _pooled_sum(index_k, stride, earlier, t, i, RATIO: tl.constexpr, D: tl.constexpr):
    """Elements i of the sum of a block's raw keys in their order. earlier: `_earlier`."""
    total = tl.zeros(i.shape, tl.float32)
    for n in tl.static_range(RATIO):
        source = tl.maximum(t - (RATIO - 1 - n), 0)
        total += tl.load(index_k + source * stride + i, mask=earlier[0][n] & (i < D), other=0.0).to(tl.float32)
        total += earlier[1][n]
    return total


@triton.jit
def _index_key(
    index_k, stride, gamma, raw, pooled, slots, positions, t, slot, position, page, frequencies, magnitude, eps,
    PAGE: tl.constexpr, RATIO: tl.constexpr, RING: tl.constexpr, KEEP: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Keep the raw index key; a block's last token pools it: mean, norm, rotation to the first token."""
    i = tl.arange(0, BLOCK)
    inside = i < D
    last = (position + 1) % RATIO == 0
    if last:
        j = partner_of(i, PAIRS)
        weights = norm_weights(gamma, i, D, PAIRS)
        turn = turn_of(i, position + 1 - RATIO, frequencies, magnitude, PAIRS)
        mine = _earlier(raw, slots, positions, t, slot, position, i, RATIO, RING, D)
        other = _earlier(raw, slots, positions, t, slot, position, j, RATIO, RING, D)
        wait(EARLY)
        x = _pooled_sum(index_k, stride, mine, t, i, RATIO, D) / RATIO
        partner = _pooled_sum(index_k, stride, other, t, j, RATIO, D) / RATIO
        scale = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        x = rotated(x * scale * weights[0], partner * scale * weights[1], i, turn, PAIRS)
        place = (page * (PAGE // RATIO) + (position % PAGE) // RATIO) * D + i
        tl.store(pooled + place, x.to(pooled.dtype.element_ty), mask=inside)
    else:
        wait(EARLY)
    if KEEP:
        own = tl.load(index_k + t * stride + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(raw + (slot.to(tl.int64) * RING + position % RING) * D + i, own, mask=inside)


@triton.jit
def _index_query(
    index_q, gamma, out, position, frequencies, magnitude, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One index query head."""
    i = tl.arange(0, BLOCK)
    weights = norm_weights(gamma, i, D, PAIRS)
    turn = turn_of(i, position, frequencies, magnitude, PAIRS)
    wait(EARLY)
    x, partner = normed(index_q, weights, i, D, eps, PAIRS)
    tl.store(out + i, rotated(x, partner, i, turn, PAIRS), mask=i < D)


@triton.jit
def _prepare(
    q, k, v, index_q, index_k, queries, gate, index_queries,
    q_gamma, k_gamma, index_q_gamma, index_k_gamma, frequencies, magnitude, eps,
    slots, positions, pages, page_stride, codes, scales, raw, pooled, cells, far_row, far_codes, far_scales,
    q_stride, k_stride, v_stride, index_q_stride, index_k_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, RING: tl.constexpr, KEEP: tl.constexpr,
    INDEX_HEADS: tl.constexpr, INDEX_D: tl.constexpr, INDEX_BLOCK: tl.constexpr, FAR: tl.constexpr,
    EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """FAR: codes and scales of a page lie at its home (`homes.py`). EARLY (see `Columns`): all that depends on places
    and weights alone, angles above all, is there before the wait, and so are raw keys of earlier steps."""
    release(OVERLAP)
    wait(OVERLAP and not EARLY)
    LATE: tl.constexpr = OVERLAP and EARLY
    t, unit = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + t)
    slot = tl.load(slots + t)
    page = tl.load(pages + slot * page_stride + position // PAGE).to(tl.int64)
    if unit < HEADS:
        _query_head(q + t * q_stride, q_gamma, queries, gate, t, unit, position, frequencies, magnitude, eps,
                    HEADS, D, PAIRS, LATE)  # fmt: skip
    elif unit < HEADS + 2 * KV_HEADS:
        home = page
        if FAR:
            home = tl.load(cells + slot * page_stride + position // PAGE).to(tl.int64)
            away = home * (KV_HEADS * 2 * PAGE) >= far_row
            codes += tl.where(away, far_codes, 0)
            scales += tl.where(away, far_scales, 0)
        _cache_row(k + t * k_stride, v + t * v_stride, k_gamma, codes, scales, home, unit - HEADS, position,
                   frequencies, magnitude, eps, KV_HEADS, D, PAIRS, GROUPS, BITS, PAGE, LATE)  # fmt: skip
    elif unit == HEADS + 2 * KV_HEADS:
        _index_key(index_k, index_k_stride, index_k_gamma, raw, pooled, slots, positions, t, slot, position, page,
                   frequencies, magnitude, eps, PAGE, RATIO, RING, KEEP, INDEX_D, INDEX_BLOCK, PAIRS,
                   LATE)  # fmt: skip
    else:
        head = unit - HEADS - 2 * KV_HEADS - 1
        _index_query(index_q + t * index_q_stride + head * INDEX_D, index_q_gamma,
                     index_queries + (t * INDEX_HEADS + head) * INDEX_D, position, frequencies, magnitude, eps,
                     INDEX_D, INDEX_BLOCK, PAIRS, LATE)  # fmt: skip


@triton.jit(do_not_specialize=["slot", "start"])
def _keep_ring(x, x_stride, ring, slot, start, WIDTH, RING: tl.constexpr, BLOCK: tl.constexpr):
    """Row of the token at start + program into its place of a ring [slots, RING, WIDTH]."""
    t = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + t.to(tl.int64) * x_stride + i, mask=i < WIDTH).to(tl.float32)
    place = (slot.to(tl.int64) * RING + (start + t) % RING) * WIDTH
    tl.store(ring + place + i, value, mask=i < WIDTH)


def keep_ring(x: torch.Tensor, ring: torch.Tensor, slot: int, position: int, keep: int) -> None:
    """Remember the last `keep` rows of x [T, W], which starts at `position`, in ring [slots, R, W]."""
    tokens, width = x.shape
    keep = min(keep, tokens)
    if keep:
        _keep_ring[(keep, -(-width // 1024))](
            x[tokens - keep :], x.stride(0), ring, slot, position + tokens - keep, width,
            RING=ring.shape[1], BLOCK=1024,
        )  # fmt: skip


@dataclass(frozen=True)
class Rope:
    """How positions turn vectors: radians per position of each pair, float32 on the device."""

    frequencies: torch.Tensor
    magnitude: float


@dataclass(frozen=True)
class Prepared:
    """What attention needs of new tokens. queries [T, heads, D] · gate [T, heads*D] · index [T, index heads, D'].

    Float32; queries and gate of a prompt whose cache has eight bits are float16.
    """

    queries: torch.Tensor
    gate: torch.Tensor
    index: torch.Tensor | None


def attention_prepare(
    weights: Any, projected: tuple[torch.Tensor, ...], memory: AttentionMemory, columns: Columns, rope: Rope,
    heads: int, kv_heads: int, index_heads: int, eps: float,
) -> Prepared:  # fmt: skip
    """Norm and rotate the raw projections (q, k, v, and with an indexer its q and k), append to the caches."""
    q, k, v, *index = projected
    tokens, device = len(q), q.device
    dim = k.shape[1] // kv_heads
    indexer = weights.indexer
    halves = columns.parts is None and memory.codes.dtype == torch.int8  # a prompt's products take them anyhow
    kind = torch.float16 if halves else torch.float32
    queries = torch.empty(tokens, heads, dim, dtype=kind, device=device)
    gate = torch.empty(tokens, heads * dim, dtype=kind, device=device)
    index_dim = memory.raw.shape[2] if indexer is not None else dim
    index_q, index_k = index if indexer is not None else (q, k)
    index_queries = None
    units = heads + 2 * kv_heads
    far = memory.in_place
    if indexer is not None:
        index_queries = torch.empty(tokens, index_heads, index_dim, dtype=torch.float32, device=device)
        units += 1 + index_heads
    _prepare[(tokens, units)](
        q, k, v, index_q, index_k,
        queries, gate, index_queries if index_queries is not None else queries,
        weights.q_norm, weights.k_norm,
        indexer.q_norm if indexer is not None else weights.q_norm,
        indexer.k_norm if indexer is not None else weights.q_norm,
        rope.frequencies, rope.magnitude, eps,
        columns.slots, columns.positions, memory.pages, memory.pages.stride(0), memory.codes, memory.scales,
        memory.raw, memory.pooled, memory.cells, far.first, far.codes, far.scales,
        q.stride(0), k.stride(0), v.stride(0), index_q.stride(0), index_k.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=dim, PAIRS=len(rope.frequencies),
        GROUPS=memory.scales.shape[-1], BITS=8 if memory.codes.dtype == torch.int8 else 16, PAGE=PAGE,
        RATIO=max(memory.ratio, 1), RING=memory.raw.shape[1], KEEP=columns.parts is not None,
        INDEX_HEADS=max(index_heads, 1), INDEX_D=index_dim, INDEX_BLOCK=power_of_two(index_dim),
        FAR=memory.far is not None, EARLY=columns.early, OVERLAP=target(device).overlap, num_warps=2,
        **overlapped(device),
    )  # fmt: skip
    if indexer is not None and columns.parts is None:
        keep_ring(index_k, memory.raw, columns.slot, columns.start, memory.ratio - 1)
    return Prepared(queries, gate, index_queries)
