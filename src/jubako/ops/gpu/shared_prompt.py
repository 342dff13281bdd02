"""The shared expert for a prompt: every token uses it, so that its products are the library's."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .hyper_prompt import HALF
from .prompt import Halves, halves, product
from .slots import Slots

BLOCK = 1024


@triton.jit
def hidden_kernel(
    both, stride, factor, hidden, size, cols, HALF: tl.constexpr, FACTOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (t, piece): HALF times silu(gate)·up of both [T, 2·size] to hidden [T, cols], zeros beyond size."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(both + token * stride + k, mask=k < size, other=0.0)
    up = tl.load(both + token * stride + size + k, mask=k < size, other=0.0)
    if FACTOR:
        f = tl.load(factor + token)
        gate *= f
        up *= f
    h = gate * tl.sigmoid(gate) * up * HALF
    tl.store(hidden + token * cols + k, tl.minimum(tl.maximum(h, -65504.0), 65504.0).to(tl.float16), mask=k < cols)


def shared_of_prompt(slots: Slots, x: Halves) -> torch.Tensor:
    """HALF times the outputs float32 [T, H] of the expert in slot 0 for every token of x [T, H]."""
    gate, up, down = slots.matrices(0)
    both = product(x.x, halves([gate, up]))
    hidden = torch.empty(x.tokens, down.cols, dtype=torch.float16, device=x.x.device)
    hidden_kernel[(x.tokens, -(-down.cols // BLOCK))](
        both, both.stride(0), x.factor if x.factor is not None else both, hidden, gate.rows, down.cols,
        HALF=HALF, FACTOR=x.factor is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return product(hidden, halves([down]))[:, : down.rows].contiguous()
