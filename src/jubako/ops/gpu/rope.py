"""Norms of heads and rotary positions: elements i of a head, and the ones that they pair with."""
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turn_of(i, position, frequencies, magnitude, pairs: tl.constexpr):
    """Cosine and sine of each element's angle at `position`."""
    frequency = tl.load(frequencies + i % pairs, mask=i < 2 * pairs, other=0.0)
    angle = position.to(tl.float32) * frequency
    return tl.cos(angle) * magnitude, tl.sin(angle) * magnitude


@triton.jit
def rotated(x, partner, i, turn, pairs: tl.constexpr):
    """x [D] turned; partner holds the element that each one pairs with."""
    cos, sin = turn
    turned = tl.where(i < pairs, x * cos - partner * sin, x * cos + partner * sin)
    return tl.where(i < 2 * pairs, turned, x)


@triton.jit
def partner_of(i, pairs: tl.constexpr):
    """The element that each one pairs with."""
    return tl.where(i < pairs, i + pairs, tl.where(i < 2 * pairs, i - pairs, i))


@triton.jit
def norm_weights(gamma, i, size, pairs: tl.constexpr):
    """Weights of a norm for elements i and their partners."""
    j = partner_of(i, pairs)
    return tl.load(gamma + i, mask=i < size, other=0.0), tl.load(gamma + j, mask=j < size, other=0.0)


@triton.jit
def normed(row, weights, i, size, eps, pairs: tl.constexpr):
    """The row at pointer `row` over its root mean square, times `norm_weights`, and the same of partners."""
    j = partner_of(i, pairs)
    x = tl.load(row + i, mask=i < size, other=0.0).to(tl.float32)
    partner = tl.load(row + j, mask=j < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    return x * scale * weights[0], partner * scale * weights[1]
