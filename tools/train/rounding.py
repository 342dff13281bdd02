"""What a weight becomes in a block type, with the gradient of the weight itself: training through quantisation.

The same rules as `jubako.quant.legacy`, in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .export import type_of


@torch.no_grad()
def rounded(weight: Tensor, kind: str) -> Tensor:
    """`weight` as blocks of 32 of this type would give it back."""
    blocks = weight.float().view(*weight.shape[:-1], -1, 32)
    if kind == "Q8_0":
        d = blocks.abs().amax(-1, keepdim=True) / 127
        scaled = blocks / d.clamp(min=1e-30)
        codes = (scaled.abs() + 0.5).floor() * scaled.sign()
    elif kind == "Q5_0":
        d = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -16
        codes = (blocks / torch.where(d == 0, 1.0, d) + 16.5).floor().clamp(0, 31) - 16
    else:
        raise ValueError(f"no rounding for {kind}")
    result: Tensor = codes * d.half().float()
    return result.flatten(-2)


def as_stored(weights: dict[str, Tensor], choice: str) -> dict[str, Tensor]:
    """Every weight as it will be stored; gradients pass to the weights as they are."""
    kinds = {name: type_of(name, choice) for name in weights}
    return {
        name: weight.clone() if kinds[name] == "F32" else weight + (rounded(weight, kinds[name]) - weight).detach()
        for name, weight in weights.items()
    }
