"""What the draft layer starts from: a token's streams and the embedding of the token after it, normed and projected.

A step's norms are one launch, which quantises: program (t, s) norms stream s of token t over the root mean square of
all its streams; one more norms the embedding. The projected embedding is left to the mix that follows, which adds it to
every stream on its way.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import prompt
from .activation import Quantised, room_for, store_each
from .columns import Columns
from .combine import Pending
from .embed import embed
from .launch import power_of_two
from .linear import linear
from .matrix import Matrix
from .target import release, target, wait

TOGETHER = 1024  # tokens of a prompt that are joined at a time


@triton.jit
def scaled_row(row, gamma, i, width, eps):
    """Elements i of the row at `row` over its root mean square, times gamma."""
    x = tl.load(row + i, mask=i < width, other=0.0)
    return x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * tl.load(gamma + i, mask=i < width, other=0.0)


@triton.jit
def join_kernel(
    streams, slots, positions, wide_gamma, q, d, s, numbers, token, gamma, token_q, token_d, token_s, token_numbers,
    blocks, hidden, eps,
    STREAMS: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr, RING: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """RING: streams lie in a ring [slots, RING, S·H], where those of a position have their place."""
    release(OVERLAP)
    wait(OVERLAP)
    t, part = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, SIZE)
    block = tl.arange(0, SIZE // 32)
    live = block * 32 < hidden
    if part < STREAMS:
        row = t.to(tl.int64)
        if RING > 0:
            row = tl.load(slots + t).to(tl.int64) * RING + tl.load(positions + t) % RING
        at = streams + row * (STREAMS * hidden)
        every = tl.arange(0, WIDE)
        all_of_it = tl.load(at + every, mask=every < STREAMS * hidden, other=0.0)
        factor = tl.rsqrt(tl.sum(all_of_it * all_of_it, 0) / (STREAMS * hidden) + eps)
        own = part * hidden + i
        x = tl.load(at + own, mask=i < hidden, other=0.0) * factor
        x = tl.reshape(x * tl.load(wide_gamma + own, mask=i < hidden, other=0.0), [SIZE // 32, 32])
        store_each(x, t * STREAMS + part + 0 * block, block, live, blocks, q, d, s, numbers, True, True)
    else:
        x = tl.reshape(scaled_row(token + t * hidden, gamma, i, hidden, eps), [SIZE // 32, 32])
        store_each(x, t + 0 * block, block, live, blocks, token_q, token_d, token_s, token_numbers, True, True)


@triton.jit
def norm_kernel(x, gamma, out, width, eps, SIZE: tl.constexpr):
    """Program t: a row over its root mean square, times gamma, as halves: at most √width·gamma, which fits."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    value = scaled_row(x + row * width, gamma, i, width, eps)
    tl.store(out + row * width + i, value.to(tl.float16), mask=i < width)


@dataclass(frozen=True, slots=True)
class Join:
    """How streams and embeddings meet: the projections [H, H] and their norms' gammas [S·H], [H].

    evenly  ones [TOGETHER, S]: every stream takes the whole embedding
    """

    embed: Matrix
    hidden: Matrix
    embedding: Matrix
    norm_hidden: torch.Tensor
    norm_embedding: torch.Tensor
    evenly: torch.Tensor
    eps: float

    def step(
        self, columns: Columns, streams: torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Pending]:
        """The projected streams [T, S, H], into `out` if given, and the projected embeddings that they still lack.

        streams: [T, S, H], or a ring [slots, R, S·H] that holds those of the columns' slots and positions.
        """
        tokens, width = columns.tokens, len(self.norm_embedding)
        count = len(self.norm_hidden) // width
        device, to = streams.device, target(streams.device)
        wide, narrow = room_for(tokens * count, width, True, device), room_for(tokens, width, True, device)
        join_kernel[(tokens, count + 1)](
            streams, columns.slots, columns.positions, self.norm_hidden, wide.q, wide.d, wide.s, wide.x,
            embed(self.embed, columns.ids), self.norm_embedding, narrow.q, narrow.d, narrow.s, narrow.x,
            wide.blocks, width, self.eps,
            STREAMS=count, WIDE=power_of_two(count * width), SIZE=power_of_two(width),
            RING=0 if streams.shape[-1] == width else streams.shape[1], OVERLAP=to.overlap, num_warps=8, **to.options,
        )  # fmt: skip
        if out is None:
            out = torch.empty(tokens, count, width, device=device)
        pending = Pending(self.evenly[:tokens], linear(self.embedding, narrow))
        _product(self.hidden, wide, out.view(tokens * count, width))
        return out, pending

    def prompt(self, columns: Columns, streams: torch.Tensor) -> tuple[torch.Tensor, Pending]:
        """`step` of streams [T, S, H] of up to TOGETHER tokens, through the libraries' products."""
        wide = prompt.Halves(self._normed(streams.flatten(1), self.norm_hidden).view(-1, streams.shape[2]))
        narrow = prompt.Halves(self._normed(embed(self.embed, columns.ids), self.norm_embedding))
        joined = prompt.multiply((self.hidden,), wide).reshape(streams.shape)
        added = prompt.multiply((self.embedding,), narrow).contiguous()
        return joined, Pending(self.evenly[: columns.tokens], added)

    def _normed(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
        norm_kernel[(len(x),)](x, gamma, out, x.shape[1], self.eps, SIZE=power_of_two(x.shape[1]), num_warps=8)
        return out


def _product(weight: Matrix, x: Quantised, out: torch.Tensor) -> None:
    """Rows of x times weight into out, as many at a time as steps have columns."""
    for first in range(0, x.tokens, 16):
        rows = slice(first, first + 16)
        linear(weight, Quantised(x.q[rows], x.d[rows], x.s[rows], x.x[rows], x.width, x.fine), out[rows])
