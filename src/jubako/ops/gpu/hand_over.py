"""A block of several tokens to a `Quantised`, from the lanes where its numbers lie: a warp has a token's.

The bits are those of `activation.store_each`, whose stores come in another order: barriers, which a launch of which the
next waits for the end can do without.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import rounded, scale_and_inverse
from .fixed import put


@triton.jit
def codes_beside(x, FINE: tl.constexpr):
    """`activation.codes_of` with scales beside each number, so that all stays in the lanes where it lies."""
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.broadcast_to(tl.max(magnitude, axis=1)[:, None], x.shape).to(tl.float32, bitcast=True)
    d, inverse = scale_and_inverse(largest, FINE)
    q = rounded(x * inverse)
    return tl.where(q == q, q, 0.0).to(tl.int32), d


@triton.jit
def hand_over(x, token, block, live, blocks, q, d, s, numbers, FINE: tl.constexpr, FORM: tl.constexpr):
    """`activation.store_each` of block `block` of tokens `token` [n, 1]."""
    codes, scale = codes_beside(x, FINE)
    k = tl.arange(0, 32)[None, :]
    place = q + ((token * 4 + k // 16) * blocks * 16 + block * 16 + k % 16)
    there = live & (k >= 0)
    if FINE:
        high = (codes + 128) >> 8
        put(place, codes - (high << 8), there, FORM)
        put(place + blocks * 32, high, there, FORM)
    else:
        put(place, codes, there, FORM)
    put(numbers + ((token * blocks + block) * 32 + k), x, there, FORM)
    put(d + (token * blocks + block + k * 0), scale, live & (k == 0), FORM)
    lower = tl.sum(tl.where(k < 16, codes, 0), axis=1)[:, None]
    upper = tl.sum(tl.where(k < 16, 0, codes), axis=1)[:, None]
    put(s + ((token * 2 + k) * blocks + block), tl.where(k == 0, lower, upper), live & (k < 2), FORM)
