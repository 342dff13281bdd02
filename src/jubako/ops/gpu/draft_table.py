"""Tables of columns as passes find them: written by the host into main memory, taken from there, moved on by a draft.

A pass takes its table as its first kernel, so that the host neither copies nor waits. A step's table may leave columns
to drafts: their ids are below zero, and the drafts made meanwhile take their places.

What takes a table releases no launch before it is over. Each launch may start when all programs of the one before it
have begun, so a run of them could be on its way while main memory still answers, and the delta net reads its table
before it waits.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .columns import BASE, COUNT, FIRST, IDS, PART_SLOT, PENDING, POSITION, ROWS, SLOT
from .launch import COLUMNS, overlapped, power_of_two
from .route import likeliest_tokens
from .target import release, target, wait

MORE = 16  # blocks that drafts may finish after the choice
DRAFTED = -1  # the id of a column that a draft will fill


@triton.jit
def _take(source, table, SIZE: tl.constexpr, NUMBERS: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)  # and nothing is released: see below
    i = tl.arange(0, SIZE)
    tl.store(table + i, tl.load(source + i, mask=i < NUMBERS), mask=i < NUMBERS)


def take(source: torch.Tensor, table: torch.Tensor) -> None:
    """Make a table what `source` in main memory says when the device comes to it."""
    device = table.device
    _take[(1,)](
        source, table, SIZE=power_of_two(table.numel()), NUMBERS=table.numel(), OVERLAP=target(device).overlap,
        num_warps=2, **overlapped(device),
    )  # fmt: skip


@triton.jit
def _take_new(
    source, table, taken, drafts,
    SIZE: tl.constexpr, NUMBERS: tl.constexpr, COLUMNS: tl.constexpr, IDS: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    number = tl.load(source + NUMBERS)
    new = number != tl.load(taken)
    i = tl.arange(0, SIZE)
    value = tl.load(source + i, mask=i < NUMBERS, other=0)
    tl.store(table + i, value, mask=new & (i < NUMBERS) & (i // COLUMNS != IDS))
    column, part = tl.arange(0, COLUMNS)[:, None], tl.arange(0, COLUMNS)[None, :]
    first, count = tl.load(source + FIRST * COLUMNS + part), tl.load(source + COUNT * COLUMNS + part)
    mine = (column > first) & (column < first + count)
    turn = tl.sum(tl.where(mine, column - first - 1, 0), axis=1)
    owner = tl.sum(tl.where(mine, part, 0), axis=1)
    c = tl.arange(0, COLUMNS)
    id = tl.load(source + IDS * COLUMNS + c)
    draft = tl.load(drafts + turn * COLUMNS + owner, mask=id < 0, other=0)
    tl.store(table + IDS * COLUMNS + c, tl.where(id < 0, tl.maximum(draft, 0), id), mask=new)
    tl.debug_barrier()
    tl.store(taken, number)


def take_new(source: torch.Tensor, table: torch.Tensor, taken: torch.Tensor, drafts: torch.Tensor) -> None:
    """Make a step's table what `source` int32 [ROWS + 1, 16] says, unless that was taken before.

    The last row of the source begins with the table's number; taken int32 [1] is that of the one taken last. drafts
    int32 [15, 16]: by turn and part, the ids of columns after a part's first where the source has them below zero.
    """
    device = table.device
    _take_new[(1,)](
        source, table, taken, drafts, SIZE=power_of_two(ROWS * COLUMNS), NUMBERS=ROWS * COLUMNS, COLUMNS=COLUMNS,
        IDS=IDS, FIRST=FIRST, COUNT=COUNT, OVERLAP=target(device).overlap, num_warps=2, **overlapped(device),
    )  # fmt: skip


@triton.jit
def move_on(
    table, drafts, best, pieces, parts, kept, known, complete,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr, BEST: tl.constexpr, COLUMNS: tl.constexpr,
    IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """One column for each part: its draft, at the position after its last. The table counts turns where a step's says
    what is pending."""
    c = tl.arange(0, COLUMNS)
    inside = c < parts
    draft = likeliest_tokens(best, pieces, c, inside, BEST)
    id = tl.maximum(draft, 0)  # -1: numbers that broke down
    position = tl.load(table + BASE * COLUMNS + c) + tl.load(table + COUNT * COLUMNS + c)
    slot = tl.load(table + PART_SLOT * COLUMNS + c)
    turn = tl.minimum(tl.load(table + PENDING * COLUMNS), COLUMNS - 2)  # the last row
    tl.debug_barrier()
    tl.store(table + IDS * COLUMNS + c, id, mask=inside)
    tl.store(table + SLOT * COLUMNS + c, slot)
    tl.store(table + POSITION * COLUMNS + c, position)
    tl.store(table + FIRST * COLUMNS + c, c)
    tl.store(table + COUNT * COLUMNS + c, inside.to(tl.int32))
    tl.store(table + BASE * COLUMNS + c, position)
    tl.store(table + PENDING * COLUMNS + c, turn + 1 + 0 * c)
    tl.store(drafts + turn * COLUMNS + c, draft, mask=inside)
    if RATIO > 0:
        before, count = tl.load(complete + c), tl.load(known + c)
        now = (position + 1) // RATIO
        i = tl.arange(0, MORE)[None, :]
        at = count[:, None] + i
        new = inside[:, None] & ((before[:, None] + i) < now[:, None]) & (at < WIDTH)
        tl.store(kept + c[:, None] * WIDTH + at, before[:, None] + i, mask=new)
        tl.debug_barrier()
        tl.store(known + c, count + now - before, mask=inside)
        tl.store(complete + c, now, mask=inside)


@triton.jit
def _follow(
    table, drafts, best, pieces, parts, kept, known, complete,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr, BEST: tl.constexpr, COLUMNS: tl.constexpr,
    IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    release(OVERLAP)
    wait(OVERLAP)
    move_on(
        table, drafts, best, pieces, parts, kept, known, complete, RATIO, WIDTH, MORE, BEST, COLUMNS, IDS, SLOT,
        POSITION, FIRST, COUNT, PART_SLOT, BASE, PENDING,
    )  # fmt: skip


def sizes_of(ratio: int, width: int, pieces: int) -> dict[str, int]:
    """What `move_on` is compiled for. width: blocks that a part has room for; see `Following` for the others."""
    return {
        "RATIO": ratio, "WIDTH": width, "MORE": MORE, "BEST": power_of_two(pieces), "COLUMNS": COLUMNS, "IDS": IDS,
        "SLOT": SLOT, "POSITION": POSITION, "FIRST": FIRST, "COUNT": COUNT, "PART_SLOT": PART_SLOT, "BASE": BASE,
        "PENDING": PENDING,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Following:
    """What a pass of the draft layer leaves to the one after.

    table    of the pass, becomes that of the one after: a column for each part, its draft
    drafts   int32 [15, 16]: row by turn, column by part; takes the drafts of this turn
    best     [parts, pieces]: what the likeliest tokens are read from (`route.largest_of`)
    blocks   int32 [16, most], counts int32 [16]: chosen by each part's first draft, and finished since
    complete int32 [16]: blocks that were complete then; ratio: tokens of a block, 0 where there is no index
    """

    table: torch.Tensor
    drafts: torch.Tensor
    best: torch.Tensor
    blocks: torch.Tensor
    counts: torch.Tensor
    complete: torch.Tensor
    ratio: int

    @property
    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        """What `move_on` is given first."""
        return (
            self.table, self.drafts, self.best, self.best.shape[1], len(self.best), self.blocks, self.counts,
            self.complete,
        )  # fmt: skip

    @property
    def sizes(self) -> dict[str, int]:
        """What it is compiled for."""
        return sizes_of(self.ratio, self.blocks.shape[1], self.best.shape[1])

    def follow(self) -> None:
        """Take the likeliest tokens as the drafts of this turn, and move the table on."""
        device = self.best.device
        _follow[(1,)](*self.arguments, **self.sizes, OVERLAP=target(device).overlap, num_warps=4, **overlapped(device))
