"""A number on its way to another card: in a word of eight bytes together with the number of its exchange.

So the other card knows by the word itself that it has come; no flag, no fence.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

SITES = 1 << 12  # exchanges of a pass, at most


@dataclass(frozen=True, slots=True, eq=False)
class Outbox:
    """Where what is sent for one exchange goes.

    box     int64 [2, most]: the other card's inbox; exchanges take the halves in turns
    passes  int32 [1] here: number of the pass
    site    of the exchange in it
    """

    box: torch.Tensor
    passes: torch.Tensor
    site: int
    most: int


@triton.jit
def exchange_number(passes, site, SITES: tl.constexpr):
    """Which exchange it is: int32."""
    return (tl.load(passes) * SITES + site).to(tl.int32)


@triton.jit
def word_of(y, number):
    """A number and the exchange that it is for: int64."""
    return (y.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (number.to(tl.int64) & 0xFFFFFFFF)
