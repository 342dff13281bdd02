"""exp, sigmoid and silu as csrc/mathfun.h writes them, operation by operation: the same bits as the CPU's."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .integer import fma


@triton.jit
def exp(x, FORM: tl.constexpr):
    """e^x within 2 units in the last place; 0 below -87.3, clamped at 88.72; NaN stays NaN."""
    low: tl.constexpr = -87.3
    floor = tl.where(x < low, low, x)
    c = tl.where(floor > 88.72283, 88.72283, floor)
    magic: tl.constexpr = 12582912.0
    shifted = fma(c, 1.44269504 + c * 0.0, magic + c * 0.0, FORM)
    k = shifted - magic
    one = k * 0.0 + 1.0
    r = fma(k, one * -0.693359375, c, FORM)
    r = fma(k, one * 2.12194440e-4, r, FORM)
    p = fma(one * 1.9875691500e-4, r, one * 1.3981999507e-3, FORM)
    p = fma(p, r, one * 8.3334519073e-3, FORM)
    p = fma(p, r, one * 4.1665795894e-2, FORM)
    p = fma(p, r, one * 1.6666665459e-1, FORM)
    p = fma(p, r, one * 5.0000001201e-1, FORM)
    p = fma(p, r * r, r, FORM) + 1.0
    bits = p.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return tl.where(x < low, 0.0, bits.to(tl.float32, bitcast=True))


@triton.jit
def sigmoid(x, FORM: tl.constexpr):
    """1 / (1 + e^-x)."""
    return tl.div_rn(x * 0.0 + 1.0, 1.0 + exp(0.0 - x, FORM))


@triton.jit
def silu(x, FORM: tl.constexpr):
    """x / (1 + e^-x)."""
    return tl.div_rn(x, 1.0 + exp(0.0 - x, FORM))
