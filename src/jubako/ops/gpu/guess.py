"""Between drafts: which rows go on, and which blocks the first draft's query chose.

A pass of the draft layer reads what is sure of each sequence (a part). Only the last column of a part guesses; its
blocks serve the later drafts too, with those that have been finished since.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import BASE, COUNT, FIRST, PART_SLOT, POSITION, SLOT, Columns
from .draft_table import MORE, Following
from .launch import COLUMNS, overlapped, power_of_two
from .ops import Choose
from .prepare import Prepared
from .state import AttentionMemory
from .target import release, target, wait

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
        """The same blocks for one column of each part, with those finished since, as `Following` keeps them."""
        return self.blocks[: columns.tokens], self.counts[: columns.tokens]

    def following(self, table: torch.Tensor, drafts: torch.Tensor, best: torch.Tensor) -> Following:
        """What follows a pass by `table` whose likeliest tokens `best` tells."""
        return Following(table, drafts, best, self.blocks, self.counts, self._complete, self.ratio)
