"""Between trunk and draft layer: streams of tokens that the draft layer has not read yet, by slot and position.

carry float32 [slots, CARRY, S*H]   token p at p mod CARRY
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import BASE, COUNT, FIRST, IDS, PART_SLOT, POSITION, SLOT, Columns
from .launch import COLUMNS, power_of_two

CARRY = 64  # a step's columns fit beside as many that wait
BLOCK = 1024


@triton.jit
def _move(streams, carry, slots, positions, WIDTH: tl.constexpr, RING: tl.constexpr, BLOCK: tl.constexpr,
          KEEP: tl.constexpr):  # fmt: skip
    """A row of streams [T, WIDTH] into its place of the ring, or out of it."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(slots + t).to(tl.int64) * RING + tl.load(positions + t) % RING
    if KEEP:
        tl.store(carry + place * WIDTH + i, tl.load(streams + t * WIDTH + i, mask=i < WIDTH), mask=i < WIDTH)
    else:
        tl.store(streams + t * WIDTH + i, tl.load(carry + place * WIDTH + i, mask=i < WIDTH), mask=i < WIDTH)


def keep_streams(streams: torch.Tensor, carry: torch.Tensor, columns: Columns) -> None:
    """Remember streams [T, S, H] of the columns, at most CARRY of them."""
    width = carry.shape[2]
    _move[(columns.tokens, -(-width // BLOCK))](
        streams, carry, columns.slots, columns.positions, WIDTH=width, RING=carry.shape[1], BLOCK=BLOCK, KEEP=True
    )


def kept_streams(carry: torch.Tensor, columns: Columns, streams: int) -> torch.Tensor:
    """What was remembered for the columns: [T, S, H]."""
    width = carry.shape[2]
    out = torch.empty(columns.tokens, streams, width // streams, dtype=torch.float32, device=carry.device)
    _move[(columns.tokens, -(-width // BLOCK))](
        out, carry, columns.slots, columns.positions, WIDTH=width, RING=carry.shape[1], BLOCK=BLOCK, KEEP=False
    )
    return out


@triton.jit
def _last_rows(streams, parts, out, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
               COUNT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The row of each part's last column."""
    part = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(parts + FIRST * COLUMNS + part) + tl.load(parts + COUNT * COLUMNS + part) - 1
    x = tl.load(streams + tl.maximum(row, 0).to(tl.int64) * WIDTH + i, mask=i < WIDTH)
    tl.store(out + part.to(tl.int64) * WIDTH + i, x, mask=i < WIDTH)


def last_rows(streams: torch.Tensor, parts: torch.Tensor, count: int) -> torch.Tensor:
    """Streams [parts, S, H] after the last column of each of `count` parts."""
    out = torch.empty(count, *streams.shape[1:], dtype=torch.float32, device=streams.device)
    width = streams.shape[1] * streams.shape[2]
    _last_rows[(count, -(-width // BLOCK))](
        streams, parts, out, WIDTH=width, COLUMNS=COLUMNS, FIRST=FIRST, COUNT=COUNT, BLOCK=BLOCK
    )
    return out


@triton.jit
def _follow(table, ids, drafts, turn, parts, COLUMNS: tl.constexpr, IDS: tl.constexpr, SLOT: tl.constexpr,
            POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, PART_SLOT: tl.constexpr,
            BASE: tl.constexpr):  # fmt: skip
    """One column for each part: its draft, at the position after its last."""
    c = tl.arange(0, COLUMNS)
    inside = c < parts
    count = tl.load(table + COUNT * COLUMNS + c)
    position = tl.load(table + BASE * COLUMNS + c) + count
    slot = tl.load(table + PART_SLOT * COLUMNS + c)
    draft = tl.load(ids + c, mask=inside, other=0).to(tl.int32)
    tl.debug_barrier()
    tl.store(table + IDS * COLUMNS + c, tl.maximum(draft, 0), mask=inside)  # -1: numbers that broke down
    tl.store(table + SLOT * COLUMNS + c, slot)
    tl.store(table + POSITION * COLUMNS + c, position)
    tl.store(table + FIRST * COLUMNS + c, c)
    tl.store(table + COUNT * COLUMNS + c, inside.to(tl.int32))
    tl.store(table + BASE * COLUMNS + c, position)
    at = tl.minimum(tl.load(turn), COLUMNS - 2)  # the last row
    tl.store(drafts + at * COLUMNS + c, draft, mask=inside)
    tl.debug_barrier()
    tl.store(turn, at + 1)


def follow(table: torch.Tensor, ids: torch.Tensor, drafts: torch.Tensor, turn: torch.Tensor) -> None:
    """Note drafts `ids` [parts] as row `turn` of drafts [*, 16]; make the table that of the pass after them."""
    _follow[(1,)](
        table, ids, drafts, turn, len(ids), COLUMNS=COLUMNS, IDS=IDS, SLOT=SLOT, POSITION=POSITION, FIRST=FIRST,
        COUNT=COUNT, PART_SLOT=PART_SLOT, BASE=BASE, num_warps=1,
    )  # fmt: skip


@triton.jit
def _norm(x, gamma, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row over its root mean square, times gamma."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    tl.store(out + row * WIDTH + i, value * scale * tl.load(gamma + i, mask=i < WIDTH, other=0.0), mask=i < WIDTH)


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, n] over its root mean square, times gamma [n]."""
    out = torch.empty_like(x)
    _norm[(len(x),)](x, gamma, out, eps, WIDTH=x.shape[1], BLOCK=power_of_two(x.shape[1]), num_warps=8)
    return out
