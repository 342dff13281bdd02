"""The convolution of a delta net's columns: weights and earlier values, which may be fetched early, and this step's.

Columns stand side by side [G, 1], channels along [1, N]. A column sees KERNEL raw values of each channel, its own last;
those of earlier steps lie in a ring of RING rows, row = position modulo RING.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fetch_taps(taps, channel, lanes, CHANNELS: tl.constexpr, KERNEL: tl.constexpr):
    """The convolution's weights of channels [1, N], for all of `lanes` [G, 1]: a tuple of [G, N]."""
    weights = ()
    for tap in tl.static_range(KERNEL):
        weights = weights + (tl.load(taps + tap * CHANNELS + channel + lanes * 0),)
    return weights


@triton.jit
def fetch_earlier(
    conv, slot, base, channel, column, live, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr
):  # fmt: skip
    """Of the raw values that columns [G, 1] see those of earlier steps, from the ring: a tuple of [G, N]."""
    values = ()
    for tap in tl.static_range(KERNEL - 1):
        source = column - (KERNEL - 1 - tap)
        position = base + source
        far = live & (source < 0) & (position >= 0) & (channel >= 0)
        row = (slot * RING + (position + RING) % RING) * CHANNELS
        values = values + (tl.load(conv + row + channel, mask=far, other=0.0),)
    return values


@triton.jit
def fetch_raw(qkv, stride, channel, first, column, live, earlier, KERNEL: tl.constexpr):
    """All the raw values that columns see, oldest first: a tuple of [G, N]. earlier: `fetch_earlier`.

    Those of this step come from its projection, in place of what is no earlier value.
    """
    values = ()
    for tap in tl.static_range(KERNEL):
        source = column - (KERNEL - 1 - tap)
        near = live & (source >= 0) & (channel >= 0)
        if tap < KERNEL - 1:
            value = tl.load(qkv + (first + source) * stride + channel, mask=near, other=earlier[tap])
        else:
            value = tl.load(qkv + (first + source) * stride + channel, mask=near, other=0.0)
        values = values + (value,)
    return values


@triton.jit
def nothing_of(values):
    """Zeros in place of a tuple's tensors."""
    zeros = ()
    for i in tl.static_range(len(values)):
        zeros = zeros + (tl.zeros_like(values[i]),)
    return zeros


@triton.jit
def convolved(raw, weights, KERNEL: tl.constexpr):
    """silu of the causal convolution: [G, N]."""
    acc = tl.zeros_like(raw[0])
    for tap in tl.static_range(KERNEL):
        acc = tl.fma(raw[tap], weights[tap], acc)
    return acc * tl.sigmoid(acc)


@triton.jit
def keep_raw(conv, slot, base, channel, column, live, value, CHANNELS: tl.constexpr, RING: tl.constexpr):
    """Raw values [G, N] of the columns, into the ring."""
    row = (slot * RING + (base + column) % RING) * CHANNELS
    tl.store(conv + row + channel, value, mask=live & (channel >= 0))
