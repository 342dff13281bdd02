"""What a delta net's head gives: its answers, normed and gated."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import codes_of


@triton.jit
def fetch_gate(z, z_stride, row, live, head, D: tl.constexpr):
    """z of a head for rows [GROUP], on its way: [GROUP, D]."""
    at = row[:, None] * z_stride + head * D + tl.arange(0, D)[None, :]
    return tl.load(z + at, mask=live[:, None], other=0.0).to(tl.float32)


@triton.jit
def gated_norm(
    x, gate, weight, row, live, head, eps, out_q, out_d, out_s, out_x, out_blocks,
    GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """A head's answers x [GROUP, D] for rows [GROUP], normed and gated: quantised as by `store_blocks`, or plain."""
    i = tl.arange(0, D)[None, :]
    x = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None] * weight * tl.sigmoid(gate)
    if QUANTISED:
        blocks: tl.constexpr = D // 32
        codes, scale = codes_of(tl.reshape(x, [GROUP * blocks, 32]), True)
        high = (codes + 128) >> 8
        codes3 = tl.reshape(codes, [GROUP, D])
        plane = out_q + (row[:, None] * 4 + i % 32 // 16) * out_blocks * 16 + (head * blocks + i // 32) * 16 + i % 16
        tl.store(plane, (codes3 - (tl.reshape(high, [GROUP, D]) << 8)).to(tl.int8), mask=live[:, None])
        tl.store(plane + out_blocks * 32, tl.reshape(high, [GROUP, D]).to(tl.int8), mask=live[:, None])
        b = head * blocks + tl.arange(0, blocks)[None, :]
        tl.store(out_d + row[:, None] * out_blocks + b, tl.reshape(scale, [GROUP, blocks]), mask=live[:, None])
        sums = tl.reshape(tl.sum(tl.reshape(codes, [GROUP * blocks * 2, 16]), 1), [GROUP, 2 * blocks])
        half = tl.arange(0, 2 * blocks)[None, :]
        at = (row[:, None] * 2 + half % 2) * out_blocks + head * blocks + half // 2
        tl.store(out_s + at, sums, mask=live[:, None])
        tl.store(out_x + row[:, None] * out_blocks * 32 + head * D + i, x, mask=live[:, None])
    else:
        tl.store(out_x + (row[:, None] * HEADS + head) * D + i, x, mask=live[:, None])
