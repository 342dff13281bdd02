"""The n-gram embedding: which table rows a token reads, and how they enter the streams.

The hash is that of `arch.ngram`: its products stay below 2^63. Ids before the call come from the slot's own record.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ...arch.config import Config, NgramConfig
from .columns import Columns
from .launch import COLUMNS, overlapped, power_of_two
from .prepare import keep_ring
from .target import release, target, wait


@dataclass(frozen=True)
class Hash:
    """The hash's constants on the device: int64 multipliers [size], sizes and offsets [heads]."""

    config: NgramConfig
    multipliers: torch.Tensor
    sizes: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, config: Config, device: torch.device) -> Hash | None:
        ngram = config.ngram
        if ngram is None:
            return None
        constants = (ngram.multipliers, ngram.head_sizes, ngram.head_offsets)
        return cls(ngram, *(torch.tensor(values, dtype=torch.int64, device=device) for values in constants))


@triton.jit
def _rows(
    ids, slots, positions, tokens, context, multipliers, sizes, offsets, rows, eos,
    SIZE: tl.constexpr, PER_NGRAM: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The table rows of one token; its id is recorded."""
    release(OVERLAP)
    wait(OVERLAP)
    t = tl.program_id(0)
    slot = tl.load(slots + t)
    position = tl.load(positions + t)
    own = tl.load(ids + t)
    record = tokens + slot.to(tl.int64) * context
    tl.store(record + position, own)
    mixed = own.to(tl.int64) * tl.load(multipliers)
    head = tl.arange(0, BLOCK)
    cut = own < 0
    for back in tl.static_range(1, SIZE):
        source = tl.maximum(t - back, 0)
        here = (t >= back) & (tl.load(slots + source) == slot)
        here = here & (tl.load(positions + source) == position - back)
        near = tl.load(ids + source)
        far = tl.load(record + tl.maximum(position - back, 0))
        token = tl.where(position < back, eos, tl.where(here, near, far))
        cut = cut | (token == eos)
        mixed = mixed ^ (tl.where(cut, eos, token).to(tl.int64) * tl.load(multipliers + back))
        place = (back - 1) * PER_NGRAM + head
        inside = head < PER_NGRAM
        row = mixed % tl.load(sizes + place, mask=inside, other=1) + tl.load(offsets + place, mask=inside, other=0)
        tl.store(rows + t.to(tl.int64) * (SIZE - 1) * PER_NGRAM + place, row, mask=inside)


def ngram_rows(hash: Hash, columns: Columns, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of the table that the tokens read: int64 [T * heads]. Their ids are recorded in tokens [slots, context]."""
    config = hash.config
    rows = torch.empty(columns.tokens * config.heads, dtype=torch.int64, device=tokens.device)
    _rows[(columns.tokens,)](
        columns.ids, columns.slots, columns.positions, tokens, tokens.shape[1],
        hash.multipliers, hash.sizes, hash.offsets, rows, config.eos,
        SIZE=config.size, PER_NGRAM=config.heads_per_ngram, BLOCK=power_of_two(config.heads_per_ngram),
        OVERLAP=target(tokens.device).overlap, num_warps=1, **overlapped(tokens.device),
    )  # fmt: skip
    return rows


@triton.jit
def _gate(
    streams, key, value, key_stride, value_stride, normed, norm_key, norm_query, norm_conv, eps, scale,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add the gated value to one stream of one token; its normed copy waits for the convolution."""
    release(OVERLAP)
    wait(OVERLAP)
    t, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < HIDDEN
    part = stream * HIDDEN + i
    place = t * STREAMS * HIDDEN + part
    k = tl.load(key + t * key_stride + part, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(streams + place, mask=inside, other=0.0)
    v = tl.load(value + t * value_stride + i, mask=inside, other=0.0).to(tl.float32)
    k_scale = tl.rsqrt(tl.sum(k * k, 0) / HIDDEN + eps)
    x_scale = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    k = k * k_scale * tl.load(norm_key + part, mask=inside, other=0.0)
    query = x * x_scale * tl.load(norm_query + part, mask=inside, other=0.0)
    match = tl.sum(k * query, 0) * scale
    size = tl.sqrt(tl.maximum(tl.abs(match), 1e-6))
    gated = v * tl.sigmoid(tl.where(match > 0.0, size, tl.where(match < 0.0, -size, 0.0)))
    tl.store(streams + place, x + gated, mask=inside)
    scaled = gated * tl.rsqrt(tl.sum(gated * gated, 0) / HIDDEN + eps)
    tl.store(normed + place, scaled * tl.load(norm_conv + part, mask=inside, other=0.0), mask=inside)


@triton.jit
def _smooth(
    streams, normed, taps, ring, slots, positions,
    WIDTH: tl.constexpr, KERNEL: tl.constexpr, DILATION: tl.constexpr, RING: tl.constexpr, KEEP: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add the convolution over tokens of the normed values."""
    release(OVERLAP)
    wait(OVERLAP)
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    slot = tl.load(slots + t)
    position = tl.load(positions + t)
    acc = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(KERNEL):
        back = (KERNEL - 1 - tap) * DILATION
        source = tl.maximum(t - back, 0)
        here = (tl.load(slots + source) == slot) & (tl.load(positions + source) == position - back)
        x = tl.load(normed + source * WIDTH + i, mask=inside & here, other=0.0)
        row = (slot.to(tl.int64) * RING + (position - back + RING) % RING) * WIDTH
        x += tl.load(ring + row + i, mask=inside & (here == 0) & (position >= back), other=0.0)
        acc += x * tl.load(taps + i * KERNEL + tap, mask=inside, other=0.0)
    place = t * WIDTH + i
    tl.store(streams + place, tl.load(streams + place, mask=inside) + acc * tl.sigmoid(acc), mask=inside)
    if KEEP:
        own = tl.load(normed + place, mask=inside, other=0.0)
        tl.store(ring + (slot.to(tl.int64) * RING + position % RING) * WIDTH + i, own, mask=inside)


def ngram_inject(
    weights: Any, streams: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ring: torch.Tensor,
    columns: Columns, dilation: int, eps: float,
) -> None:  # fmt: skip
    """Add the n-gram embedding to streams [T, S, H], in place, given its projections key [T, S*H] and value [T, H].

    ring [slots, R, S*H]: the convolution's past columns.
    """
    tokens, count, hidden = streams.shape
    width = count * hidden
    kernel, to, options = weights.conv.shape[1], target(streams.device), overlapped(streams.device)
    normed = torch.empty(tokens, width, dtype=torch.float32, device=streams.device)
    _gate[(tokens, count)](
        streams, key, value, key.stride(0), value.stride(0), normed,
        weights.norm_key, weights.norm_query, weights.norm_conv, eps, 1 / math.sqrt(hidden),
        STREAMS=count, HIDDEN=hidden, BLOCK=power_of_two(hidden), OVERLAP=to.overlap, num_warps=8, **options,
    )  # fmt: skip
    step = columns.parts is not None
    _smooth[(tokens, -(-width // 1024))](
        streams, normed, weights.conv, ring, columns.slots, columns.positions,
        WIDTH=width, KERNEL=kernel, DILATION=dilation, RING=ring.shape[1], KEEP=step, BLOCK=1024,
        OVERLAP=to.overlap, num_warps=4, **options,
    )  # fmt: skip
    if not step:
        keep_ring(normed, ring, columns.slot, columns.start, ring.shape[1] - COLUMNS)
