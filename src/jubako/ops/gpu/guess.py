"""Between drafts: which rows go on, which blocks the first draft's query chose, and drafts that become columns.

A pass of the draft layer reads what is sure of each sequence (a part). Only the last column of a part guesses; its
blocks serve the later drafts too, with those that have been finished since.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import BASE, COUNT, FIRST, IDS, PART_SLOT, PENDING, POSITION, SLOT, Columns
from .launch import COLUMNS, overlapped, power_of_two
from .ops import Choose
from .prepare import Prepared
from .route import likeliest_tokens
from .state import AttentionMemory
from .target import release, target, wait

MORE = 16  # blocks that drafts may finish after the choice
PIECE = 1024  # elements that a program moves


@triton.jit
def _copy(source, to, row, part, i, width):
    """Elements i of a row."""
    x = tl.load(source + row * width + i, mask=i < width)
    tl.store(to + part * width + i, x, mask=i < width)


@triton.jit
def _last_rows(
    table, last, streams, to_streams, queries, to_queries, gate, to_gate, index, to_index, inject, to_inject,
    streams_width, queries_width, index_width, inject_width, parts,
    INDEXED: tl.constexpr, COLUMNS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, PART_SLOT: tl.constexpr, BASE: tl.constexpr, PIECE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (part, piece): what goes on from the part's last column; the first one writes the table of these."""
    release(OVERLAP)
    wait(OVERLAP)
    part, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(table + FIRST * COLUMNS + part) + tl.load(table + COUNT * COLUMNS + part) - 1
    row = tl.maximum(row, 0).to(tl.int64)
    i = piece * PIECE + tl.arange(0, PIECE)
    _copy(streams, to_streams, row, part, i, streams_width)
    _copy(queries, to_queries, row, part, i, queries_width)
    _copy(gate, to_gate, row, part, i, queries_width)
    _copy(inject, to_inject, row, part, i, inject_width)
    if INDEXED:
        _copy(index, to_index, row, part, i, index_width)
    if (part == 0) & (piece == 0):
        c = tl.arange(0, COLUMNS)
        position = tl.load(table + BASE * COLUMNS + c) + tl.load(table + COUNT * COLUMNS + c) - 1
        slot = tl.load(table + PART_SLOT * COLUMNS + c)
        tl.store(last + POSITION * COLUMNS + c, position)
        tl.store(last + BASE * COLUMNS + c, position)
        tl.store(last + SLOT * COLUMNS + c, slot)
        tl.store(last + PART_SLOT * COLUMNS + c, slot)
        tl.store(last + FIRST * COLUMNS + c, c)
        tl.store(last + COUNT * COLUMNS + c, (c < parts).to(tl.int32))


def last_rows(
    columns: Columns, parts: int, ready: Prepared, streams: torch.Tensor, inject: torch.Tensor, to: torch.Tensor
) -> tuple[Columns, Prepared, torch.Tensor]:
    """The last column of each of `parts` parts: where it stands, what attention needs of it, its inject [parts, S].

    streams [T, S, H]: its row goes to `to` [parts, S, H].
    """
    table = columns.parts
    assert table is not None
    device = streams.device

    def room(like: torch.Tensor) -> torch.Tensor:
        return torch.empty(parts, *like.shape[1:], dtype=torch.float32, device=device)

    queries, gate, weights = room(ready.queries), room(ready.gate), room(inject)
    index = None if ready.index is None else room(ready.index)
    last = torch.empty_like(table)
    width = streams[0].numel()
    _last_rows[(parts, -(-width // PIECE))](
        table, last, streams, to, ready.queries, queries, ready.gate, gate,
        gate if ready.index is None else ready.index, gate if index is None else index, inject, weights,
        width, gate.shape[1], 0 if index is None else index[0].numel(), inject.shape[1], parts,
        INDEXED=index is not None, COLUMNS=COLUMNS, SLOT=SLOT, POSITION=POSITION, FIRST=FIRST, COUNT=COUNT,
        PART_SLOT=PART_SLOT, BASE=BASE, PIECE=PIECE, OVERLAP=target(device).overlap, **overlapped(device),
    )  # fmt: skip
    assert width >= gate.shape[1] and (index is None or width >= index[0].numel())
    return Columns.of_step(last, parts), Prepared(queries, gate, index), weights


@triton.jit
def _note(
    blocks, counts, positions, kept, known, complete, budget,
    RATIO: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program part: what its column chose, and how many blocks were complete for that."""
    release(OVERLAP)
    wait(OVERLAP)
    part = tl.program_id(0)
    i = tl.arange(0, SIZE)
    tl.store(kept + part * WIDTH + i, tl.load(blocks + part * budget + i, mask=i < budget), mask=i < budget)
    tl.store(known + part, tl.load(counts + part))
    tl.store(complete + part, (tl.load(positions + part) + 1) // RATIO)


@triton.jit
def _follow(
    table, drafts, best, pieces, parts, kept, known, complete,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One column for each part: its draft, at the position after its last. The table counts turns where a step's says
    what is pending."""
    release(OVERLAP)
    wait(OVERLAP)
    c = tl.arange(0, COLUMNS)
    inside = c < parts
    draft = likeliest_tokens(best, pieces, c, inside, SIZE)
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


class Choice:
    """Blocks int32 [16, budget + MORE] of each part's draft, and how many. budget: most that an index chooses.

    ratio: tokens of a block, 0 where there is no index.
    """

    def __init__(self, budget: int, ratio: int, device: torch.device) -> None:
        self.ratio = ratio
        self.blocks = torch.zeros(COLUMNS, budget + MORE, dtype=torch.int32, device=device)
        self.counts = torch.zeros(COLUMNS, dtype=torch.int32, device=device)
        self._complete = torch.zeros(COLUMNS, dtype=torch.int32, device=device)

    def first(self, select: Choose) -> Choose:
        """`select` of one column for each part, noting what it chose."""

        def choose(q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
            blocks, counts = select(q, memory, columns)
            _note[(columns.tokens,)](
                blocks, counts, columns.positions, self.blocks, self.counts, self._complete, blocks.shape[1],
                RATIO=memory.ratio, SIZE=power_of_two(blocks.shape[1]), WIDTH=self.blocks.shape[1],
                OVERLAP=target(q.device).overlap, num_warps=1, **overlapped(q.device),
            )  # fmt: skip
            return blocks, counts

        return choose

    def again(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """The same blocks for one column of each part, with those finished since, as `follow` keeps them."""
        return self.blocks[: columns.tokens], self.counts[: columns.tokens]

    def follow(self, table: torch.Tensor, drafts: torch.Tensor, best: torch.Tensor) -> None:
        """Take the likeliest tokens by `best` [parts, pieces] (`route.largest_of`) as the drafts of this turn.

        drafts int32 [15, 16]: row by turn, column by part. table: of the draft layer's pass, becomes that of the pass
        after.
        """
        device = best.device
        _follow[(1,)](
            table, drafts, best, best.shape[1], len(best), self.blocks, self.counts, self._complete,
            RATIO=self.ratio, WIDTH=self.blocks.shape[1], MORE=MORE, SIZE=power_of_two(best.shape[1]), COLUMNS=COLUMNS,
            IDS=IDS, SLOT=SLOT, POSITION=POSITION, FIRST=FIRST, COUNT=COUNT, PART_SLOT=PART_SLOT, BASE=BASE,
            PENDING=PENDING, OVERLAP=target(device).overlap, num_warps=4, **overlapped(device),
        )  # fmt: skip


@triton.jit
def _take(source, table, SIZE: tl.constexpr, NUMBERS: tl.constexpr, OVERLAP: tl.constexpr):
    release(OVERLAP)
    wait(OVERLAP)
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
def _insert(
    table, drafts,
    COLUMNS: tl.constexpr, IDS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Turn by part."""
    release(OVERLAP)
    wait(OVERLAP)
    turn, part = tl.arange(0, COLUMNS)[:, None], tl.arange(0, COLUMNS)[None, :]
    first, count = tl.load(table + FIRST * COLUMNS + part), tl.load(table + COUNT * COLUMNS + part)
    wanted = turn + 1 < count
    draft = tl.load(drafts + turn * COLUMNS + part, mask=wanted, other=0)
    tl.store(table + IDS * COLUMNS + first + 1 + turn, tl.maximum(draft, 0), mask=wanted)


def insert(table: torch.Tensor, drafts: torch.Tensor) -> None:
    """Make drafts int32 [15, 16], by turn and part, ids of each part's columns after its first in a step's table."""
    device = table.device
    _insert[(1,)](
        table, drafts, COLUMNS=COLUMNS, IDS=IDS, FIRST=FIRST, COUNT=COUNT, OVERLAP=target(device).overlap,
        num_warps=1, **overlapped(device),
    )  # fmt: skip
