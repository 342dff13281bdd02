"""What the draft layer starts from: a token's streams and the embedding of the token after it, normed and projected.

A step's part of it is two launches. Program (t, s) of the first norms stream s of token t over the root mean square of
all its streams, program (t, S + s) the embedding, and both are quantised side by side: the second is one product. Where
tokens are the drafts of the pass before, the first finds them, and moves the table on.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import prompt
from .activation import Quantised, joined, room_for, store_each
from .blocks import fetch
from .columns import Columns
from .combine import Pending
from .draft_table import Following, move_on, sizes_of
from .embed import decode, embed, unit_numbers
from .kinds import number_bytes
from .launch import power_of_two
from .linear import linear
from .matrix import Matrix
from .products import fetch_numbers, plain
from .route import likeliest_tokens
from .target import release, target, wait

TOGETHER = 1024  # tokens of a prompt that are joined at a time


@triton.jit
def scaled_row(row, gamma, i, width, eps):
    """Elements i of the row at `row` over its root mean square, times gamma."""
    x = tl.load(row + i, mask=i < width, other=0.0)
    return x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * tl.load(gamma + i, mask=i < width, other=0.0)


@triton.jit
def row_blocks(
    base, scale, rows, blocks, row,
    UNITS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """A row of a matrix, float32 [8·UNITS, 32]: what lies beyond its end is arbitrary."""
    at = row + tl.zeros([1, UNITS, 1], tl.int32)
    unit = tl.minimum(tl.arange(0, UNITS)[None, :, None], (blocks - 1) // 8)
    if number_bytes(TYPE) > 0:
        x = joined(plain(fetch_numbers(base, blocks, at, unit, TYPE), TYPE))  # [j, unit, i, block in three bits]
        x = tl.permute(tl.reshape(x, [8, UNITS, 4, 8]), [1, 3, 0, 2])
        if SCALED:
            x *= tl.load(scale + row)
    else:
        raw = fetch(base, rows, blocks, at, unit, TYPE, EVEN)
        first, second = unit_numbers(raw, scale, at, tl.float32, TYPE, SCALED, FORM)
        x = tl.permute(tl.join(first, second), [1, 0, 3, 2])
    return tl.reshape(x, [8 * UNITS, 32])


@triton.jit
def join_kernel(
    streams, slots, positions, wide_gamma, ids, base, scale, rows, row_size, gamma, q, d, s, numbers, blocks, hidden,
    eps, table, drafts, best, pieces, parts, kept, known, complete,
    STREAMS: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr, RING: tl.constexpr,
    TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, FOLLOWS: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr, BEST: tl.constexpr, COLUMNS: tl.constexpr,
    IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """RING: streams lie in a ring [slots, RING, S·H], where those of a position have their place.

    FOLLOWS: tokens are the likeliest by `best`; program (0, 2·S) is `move_on`. Rows of the output are [embedding,
    stream].
    """
    release(OVERLAP)
    wait(OVERLAP)
    t, part = tl.program_id(0), tl.program_id(1)
    block = tl.arange(0, SIZE // 32)
    live = block * 32 < hidden
    i = tl.arange(0, SIZE)
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
        line = t * STREAMS + part + 0 * block
        store_each(x, line, hidden // 32 + block, live, blocks, q, d, s, numbers, True, True)
    elif part < 2 * STREAMS:
        if FOLLOWS:
            c = t + tl.zeros([1], tl.int32)
            id = tl.maximum(tl.max(likeliest_tokens(best, pieces, c, c >= 0, BEST), axis=0), 0)
        else:
            id = tl.load(ids + t)
        x = row_blocks(base, scale, rows, row_size, tl.minimum(id, rows - 1), SIZE // 256, TYPE, EVEN, SCALED, FORM)
        x = tl.where(live[:, None], x, 0.0)
        factor = tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / hidden + eps)
        weight = tl.reshape(tl.load(gamma + i, mask=i < hidden, other=0.0), [SIZE // 32, 32])
        line = t * STREAMS + part - STREAMS + 0 * block
        store_each(x * factor * weight, line, block, live, blocks, q, d, s, numbers, True, True)
    elif FOLLOWS:
        if t == 0:
            move_on(
                table, drafts, best, pieces, parts, kept, known, complete, RATIO, WIDTH, MORE, BEST, COLUMNS, IDS, SLOT,
                POSITION, FIRST, COUNT, PART_SLOT, BASE, PENDING,
            )  # fmt: skip


@triton.jit
def norm_kernel(x, gamma, out, width, eps, SIZE: tl.constexpr):
    """Program t: a row over its root mean square, times gamma, as halves: at most √width·gamma, which fits."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    value = scaled_row(x + row * width, gamma, i, width, eps)
    tl.store(out + row * width + i, value.to(tl.float16), mask=i < width)


@dataclass(frozen=True, slots=True)
class Join:
    """How streams and embeddings meet: their norms' gammas [S·H], [H], and the projections side by side.

    both    [H, 2·H], of the embedding and of a stream
    evenly  ones [TOGETHER, S]: every stream takes the whole embedding
    """

    embed: Matrix
    both: Matrix
    norm_hidden: torch.Tensor
    norm_embedding: torch.Tensor
    evenly: torch.Tensor
    eps: float

    def step(
        self,
        columns: Columns,
        streams: torch.Tensor,
        out: torch.Tensor | None = None,
        after: Following | None = None,
    ) -> torch.Tensor:
        """The projected streams and embeddings [T, S, H], into `out` if given.

        streams: [T, S, H], or a ring [slots, R, S·H] that holds those of the columns' slots and positions. after: the
        pass whose drafts are the tokens, one of each part; the table is moved on to them.
        """
        tokens, width = columns.tokens, len(self.norm_embedding)
        count = len(self.norm_hidden) // width
        assert width % 256 == 0, f"hidden size {width} is not a multiple of 256"
        device, to, row = streams.device, target(streams.device), self.embed
        wide = room_for(tokens * count, 2 * width, True, device)
        nothing: tuple[torch.Tensor | int, ...] = (*[columns.ids] * 3, 0, 0, *[columns.ids] * 3)
        sizes = sizes_of(0, 0, 1) if after is None else after.sizes
        join_kernel[(tokens, 2 * count + (after is not None))](
            streams, columns.slots, columns.positions, self.norm_hidden, columns.ids, row.data, row.scale_or_data,
            row.rows, row.blocks, self.norm_embedding, wide.q, wide.d, wide.s, wide.x, wide.blocks, width, self.eps,
            *(nothing if after is None else after.arguments),
            STREAMS=count, WIDE=power_of_two(count * width), SIZE=power_of_two(width),
            RING=0 if streams.shape[-1] == width else streams.shape[1], TYPE=row.type.id, EVEN=row.blocks % 8 == 0,
            SCALED=row.scale is not None, FOLLOWS=after is not None, FORM=to.form, OVERLAP=to.overlap, **sizes,
            num_warps=8, **to.options,
        )  # fmt: skip
        if out is None:
            out = torch.empty(tokens, count, width, device=device)
        _product(self.both, wide, out.view(tokens * count, width))
        return out

    def prompt(self, columns: Columns, streams: torch.Tensor) -> tuple[torch.Tensor, Pending]:
        """The projected streams [T, S, H] of up to TOGETHER tokens, through the libraries' products, and the projected
        embeddings that they still lack."""
        wide = self._normed(streams.flatten(1), self.norm_hidden).view(-1, streams.shape[2])
        narrow = self._normed(embed(self.embed, columns.ids), self.norm_embedding)
        width = narrow.shape[1]
        both = decode(self.both, torch.empty(width, 2 * width, dtype=torch.float16, device=streams.device))
        joined = prompt.product(wide, both[:, width:]).view(streams.shape)
        return joined, Pending(self.evenly[: columns.tokens], prompt.product(narrow, both[:, :width]))

    def _normed(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
        norm_kernel[(len(x),)](x, gamma, out, x.shape[1], self.eps, SIZE=power_of_two(x.shape[1]), num_warps=8)
        return out


def _product(weight: Matrix, x: Quantised, out: torch.Tensor) -> None:
    """Rows of x times weight into out, as many at a time as steps have columns."""
    for first in range(0, x.tokens, 16):
        rows = slice(first, first + 16)
        linear(weight, Quantised(x.q[rows], x.d[rows], x.s[rows], x.x[rows], x.width, x.fine), out[rows])
