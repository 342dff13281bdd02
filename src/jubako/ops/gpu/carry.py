"""Between trunk and draft layer: streams of tokens that the draft layer has not read yet, by slot and position.

carry float32 [slots, CARRY, S*H]   token p at p mod CARRY
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import Columns
from .launch import overlapped
from .target import release, target, wait

CARRY = 64  # a step's columns fit beside as many that wait
BLOCK = 1024


@triton.jit
def _move(streams, carry, slots, positions, WIDTH: tl.constexpr, RING: tl.constexpr, BLOCK: tl.constexpr,
          KEEP: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """A row of streams [T, WIDTH] into its place of the ring, or out of it."""
    release(OVERLAP)
    wait(OVERLAP)
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
        streams, carry, columns.slots, columns.positions, WIDTH=width, RING=carry.shape[1], BLOCK=BLOCK, KEEP=True,
        OVERLAP=target(carry.device).overlap, **overlapped(carry.device),
    )  # fmt: skip


def kept_streams(carry: torch.Tensor, columns: Columns, streams: int) -> torch.Tensor:
    """What was remembered for the columns: [T, S, H]."""
    width = carry.shape[2]
    out = torch.empty(columns.tokens, streams, width // streams, dtype=torch.float32, device=carry.device)
    _move[(columns.tokens, -(-width // BLOCK))](
        out, carry, columns.slots, columns.positions, WIDTH=width, RING=carry.shape[1], BLOCK=BLOCK, KEEP=False,
        OVERLAP=target(carry.device).overlap, **overlapped(carry.device),
    )  # fmt: skip
    return out
