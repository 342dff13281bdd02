"""Hyper-connections of a prompt: norms and gates in one pass each over the streams, the products by torch's library."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .activation import Quantised
from .embed import decode
from .matrix import Matrix
from .prompt import half_product, in_half
from .target import target


@triton.jit
def norm_kernel(
    streams, gamma, normed, hidden, eps, STREAMS: tl.constexpr, SIZE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Program (t, s): a stream over its root mean square, times gamma, as float16: at most √H·gamma, which fits."""
    row = tl.program_id(0).to(tl.int64) * STREAMS + tl.program_id(1)
    h = tl.arange(0, SIZE)
    x = tl.load(streams + row * hidden + h, mask=h < hidden, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    y = x * scale * tl.load(gamma + tl.program_id(1) * hidden + h, mask=h < hidden, other=0.0)
    tl.store(normed + row * hidden + h, y.to(tl.float16), mask=h < hidden)


@triton.jit
def gates_kernel(
    gates, factor, normed, mixed, stride, hidden, STREAMS: tl.constexpr, SIZE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Program t: the mean over the streams of sigmoid(gate·factor[t])·normed."""
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, SIZE)
    f = tl.load(factor + token)
    total = tl.zeros([SIZE], tl.float32)
    for stream in tl.static_range(STREAMS):
        at = (token * STREAMS + stream) * hidden + h
        gate = tl.load(gates + at, mask=h < hidden, other=0.0).to(tl.float32) * f
        total += tl.sigmoid(gate) * tl.load(normed + at, mask=h < hidden, other=0.0).to(tl.float32)
    tl.store(mixed + token * stride + h, total * (1.0 / STREAMS), mask=h < hidden)


def halves(matrices: list[Matrix]) -> torch.Tensor:
    """Their rows as float16, one under the other."""
    out = torch.empty(
        sum(m.rows for m in matrices), matrices[0].cols, dtype=torch.float16, device=matrices[0].data.device
    )
    at = 0
    for matrix in matrices:
        decode(matrix, out[at : at + matrix.rows])
        at += matrix.rows
    return out


def mix_prompt(
    streams: torch.Tensor, norm: torch.Tensor, down: Matrix, up: Matrix, inject: Matrix | None, eps: float
) -> tuple[Quantised, torch.Tensor | None]:
    """As `hyper.hyper_mix`; the numbers alone, not quantised."""
    tokens, count, hidden = streams.shape
    device, form, size = streams.device, target(streams.device).form, triton.next_power_of_2(hidden)
    normed = torch.empty(tokens, count * hidden, dtype=torch.float16, device=device)
    norm_kernel[(tokens, count)](streams, norm, normed, hidden, eps, STREAMS=count, SIZE=size, FORM=form, num_warps=4)
    low = half_product(normed, halves([down] if inject is None else [down, inject])) / count
    written = None if inject is None else 2 * torch.sigmoid(low[:, down.rows :]).contiguous()
    narrow, factor = in_half(torch.nn.functional.silu(low[:, : down.rows]))
    wide = halves([up])
    gates = narrow @ wide.T if device.type == "cuda" else half_product(narrow, wide)
    blocks = -(-hidden // 256) * 8
    mixed = torch.empty(tokens, blocks, 32, device=device)
    gates_kernel[(tokens,)](
        gates, factor, normed, mixed, mixed.stride(0), hidden, STREAMS=count, SIZE=size, FORM=form, num_warps=8
    )
    return Quantised(mixed, mixed[:, :, 0], mixed, mixed, hidden, True), written
