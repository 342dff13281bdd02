"""Activations as quantised products read them: csrc/activation.h, laid out for lanes that own a block of a unit.

`Quantised` holds of each token
    q  int8 [4, blocks, 16]   low bytes of weights 0-15 and 16-31 of each block, then high ones (q = 256·high + low);
                              experts use the first two planes alone, in 8 bits
    d  float32 [blocks]       scales
    s  int32 [2, blocks]      Σ q of both halves of each block
    x  float32 [blocks, 32]   the numbers themselves, for plain weights
with blocks up to a multiple of 8; what lies beyond the input's own blocks is arbitrary and never counts.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .target import release, target, wait


@dataclass(frozen=True, slots=True)
class Quantised:
    """The input of products: see above. fine: in sixteen bits; width: elements of the input."""

    q: torch.Tensor
    d: torch.Tensor
    s: torch.Tensor
    x: torch.Tensor
    width: int
    fine: bool

    @property
    def tokens(self) -> int:
        return int(self.d.shape[0])

    @property
    def blocks(self) -> int:
        return int(self.d.shape[1])

    @property
    def valid(self) -> int:
        """Blocks that hold input."""
        return -(-self.width // 32)

    def plain(self) -> torch.Tensor:
        """The numbers as they are, float32 [T, width]; rows lie apart."""
        return self.x.view(self.tokens, -1)[:, : self.width]


def room_for(tokens: int, width: int, fine: bool, device: torch.device) -> Quantised:
    """An uninitialised `Quantised`, with a spare unit: padded rows of weights may be longer."""
    blocks = -(-width // 256) * 8 + 8
    return Quantised(
        torch.empty((tokens, 4, blocks, 16), dtype=torch.int8, device=device),
        torch.empty((tokens, blocks), dtype=torch.float32, device=device),
        torch.empty((tokens, 2, blocks), dtype=torch.int32, device=device),
        torch.empty((tokens, blocks, 32), dtype=torch.float32, device=device),
        width,
        fine,
    )


@triton.jit
def rounded(x):
    """The nearest whole number, ties to even; |x| below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def scale_and_inverse(largest, FINE: tl.constexpr):
    """A block's scale by its largest magnitude, and what its numbers are multiplied by. A NaN's scale is NaN."""
    most: tl.constexpr = 32385.0 if FINE else 127.0
    tiny = largest < 7.888609052210118e-31  # 2^-100
    most_of_all = largest * 0.0 + most
    d = tl.where(tiny, 0.0, tl.div_rn(largest, most_of_all))
    if FINE:
        d += 0.0 * largest
    return d, tl.where(
        tiny, 0.0, tl.div_rn(tl.where(largest < float("inf"), most_of_all, 0.0), tl.where(tiny, 1.0, largest))
    )


@triton.jit
def codes_of(x, FINE: tl.constexpr):
    """x float32 [blocks, 32] -> q int32 [blocks, 32], d float32 [blocks]. A NaN makes its block's scale NaN."""
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    d, inverse = scale_and_inverse(tl.max(magnitude, axis=1).to(tl.float32, bitcast=True), FINE)
    q = rounded(x * inverse[:, None])
    return tl.where(q == q, q, 0.0).to(tl.int32), d


@triton.jit
def store_blocks(x, token, block, blocks, q, d, s, numbers, COUNT: tl.constexpr, FINE: tl.constexpr):
    """Write x float32 [COUNT, 32], blocks `block` on of a token, to a `Quantised` (see above) of `blocks` blocks."""
    at = block + tl.arange(0, COUNT)
    store_each(x, token + 0 * at, at, at >= 0, blocks, q, d, s, numbers, FINE, True)


@triton.jit
def store_each(x, token, block, live, blocks, q, d, s, numbers, FINE: tl.constexpr, PLAIN: tl.constexpr):
    """Write x float32 [n, 32], row i as block [i] of token [i] where live [i]; PLAIN: the numbers themselves too."""
    codes, scale = codes_of(x, FINE)
    k = tl.arange(0, 32)[None, :]
    place = ((token * 4)[:, None] + k // 16) * blocks * 16 + block[:, None] * 16 + k % 16
    there = live[:, None]
    if FINE:
        high = (codes + 128) >> 8
        tl.store(q + place, (codes - (high << 8)).to(tl.int8), mask=there)
        tl.store(q + place + blocks * 32, high.to(tl.int8), mask=there)
    else:
        tl.store(q + place, codes.to(tl.int8), mask=there)
    tl.store(d + token * blocks + block, scale, mask=live)
    sums = tl.sum(tl.reshape(codes, [x.shape[0], 2, 16]), axis=2)
    half = tl.arange(0, 2)[None, :]
    tl.store(s + ((token * 2)[:, None] + half) * blocks + block[:, None], sums, mask=there)
    if PLAIN:
        tl.store(numbers + (token * blocks + block)[:, None] * 32 + k, x, mask=there)


@triton.jit
def stack(parts, SIZE: tl.constexpr):
    """A tuple of 1, 2, 4 … vectors of SIZE as rows: float32 [n, SIZE]."""
    COUNT: tl.constexpr = len(parts)
    if COUNT == 1:
        return tl.reshape(parts[0], [1, SIZE])
    else:
        return tl.trans(tl.reshape(joined(parts), [SIZE, COUNT]))


@triton.jit
def joined(parts):
    """Tensors side by side in new last dimensions, in their order."""
    HALF: tl.constexpr = len(parts) // 2
    pairs = ()
    for i in tl.static_range(HALF):
        pairs = pairs + (tl.join(parts[i], parts[i + HALF]),)
    if HALF == 1:
        return pairs[0]
    else:
        return joined(pairs)


@triton.jit
def quantize_kernel(
    x, q, d, s, numbers, width, stride, blocks,
    COUNT: tl.constexpr, FINE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (g, t) takes blocks COUNT·g on of token t."""
    release(OVERLAP)
    wait(OVERLAP)
    first = tl.program_id(0) * COUNT
    token = tl.program_id(1)
    k = (first + tl.arange(0, COUNT))[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + token * stride + k, mask=k < width, other=0.0)
    store_blocks(values, token, first, blocks, q, d, s, numbers, COUNT, FINE)


def quantize(x: torch.Tensor, fine: bool = True) -> Quantised:
    """x [T, K], rows may lie apart -> its quantised form."""
    tokens, width = x.shape
    assert x.stride(1) == 1 and x.dtype == torch.float32
    out = room_for(tokens, width, fine, x.device)
    to = target(x.device)
    quantize_kernel[(out.blocks // 8 - 1, tokens)](
        x, out.q, out.d, out.s, out.x, width, x.stride(0), out.blocks,
        COUNT=8, FINE=fine, OVERLAP=to.overlap, num_warps=2, **to.options,
    )  # fmt: skip
    return out
