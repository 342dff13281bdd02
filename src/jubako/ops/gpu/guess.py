"""Between drafts: the blocks that the first draft's query chose serve the later ones, and drafts become columns."""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import COUNT, FIRST, IDS, Columns
from .launch import COLUMNS, power_of_two
from .ops import Choose
from .state import AttentionMemory

MORE = 16  # blocks that drafts may finish after the choice


@triton.jit
def _note(
    blocks, counts, positions, parts, kept, known, complete, budget,
    RATIO: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Program part: what its last column chose, and how many blocks were complete for that."""
    part = tl.program_id(0)
    row = tl.maximum(tl.load(parts + FIRST * COLUMNS + part) + tl.load(parts + COUNT * COLUMNS + part) - 1, 0)
    i = tl.arange(0, SIZE)
    tl.store(kept + part * WIDTH + i, tl.load(blocks + row * budget + i, mask=i < budget), mask=i < budget)
    tl.store(known + part, tl.load(counts + row))
    tl.store(complete + part, (tl.load(positions + row) + 1) // RATIO)


@triton.jit
def _extend(
    positions, kept, known, complete, RATIO: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr
):  # fmt: skip
    """Program part: the blocks that are complete by now and were not before."""
    part = tl.program_id(0)
    before = tl.load(complete + part)
    count = tl.load(known + part)
    now = (tl.load(positions + part) + 1) // RATIO
    i = tl.arange(0, MORE)
    tl.store(kept + part * WIDTH + count + i, before + i, mask=(before + i < now) & (count + i < WIDTH))
    tl.debug_barrier()
    tl.store(known + part, count + now - before)
    tl.store(complete + part, now)


class Choice:
    """Blocks int32 [16, budget + MORE] of each part's draft, and how many. budget: most that an index chooses."""

    def __init__(self, budget: int, device: torch.device) -> None:
        self.blocks = torch.zeros(COLUMNS, budget + MORE, dtype=torch.int32, device=device)
        self.counts = torch.zeros(COLUMNS, dtype=torch.int32, device=device)
        self._complete = torch.zeros(COLUMNS, dtype=torch.int32, device=device)

    def first(self, select: Choose) -> Choose:
        """`select`, noting what each part's last column chose."""

        def choose(q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
            blocks, counts = select(q, memory, columns)
            assert columns.parts is not None
            _note[(COLUMNS,)](
                blocks, counts, columns.positions, columns.parts, self.blocks, self.counts, self._complete,
                blocks.shape[1], RATIO=memory.ratio, SIZE=power_of_two(blocks.shape[1]), WIDTH=self.blocks.shape[1],
                COLUMNS=COLUMNS, FIRST=FIRST, COUNT=COUNT, num_warps=1,
            )  # fmt: skip
            return blocks, counts

        return choose

    def again(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """The same blocks for one column of each part, with those finished since."""
        parts = columns.tokens
        _extend[(parts,)](
            columns.positions, self.blocks, self.counts, self._complete, RATIO=memory.ratio,
            WIDTH=self.blocks.shape[1], MORE=MORE, num_warps=1,
        )  # fmt: skip
        return self.blocks[:parts], self.counts[:parts]


@triton.jit
def _insert(
    table, drafts, COLUMNS: tl.constexpr, IDS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """Every part's columns after its first become its drafts: int32 [*, COLUMNS] by turn and part."""
    c = tl.arange(0, COLUMNS)
    first = tl.load(table + FIRST * COLUMNS + c)
    count = tl.load(table + COUNT * COLUMNS + c)
    inside = (c[:, None] >= first[None, :]) & (c[:, None] < (first + count)[None, :])  # column by part
    part = tl.sum(tl.where(inside, c[None, :], 0), 1)
    place = c - tl.sum(tl.where(inside, first[None, :], 0), 1)
    taken = (tl.sum(inside.to(tl.int32), 1) > 0) & (place > 0)
    draft = tl.load(drafts + (place - 1) * COLUMNS + part, mask=taken, other=0)
    tl.store(table + IDS * COLUMNS + c, tl.maximum(draft, 0), mask=taken)


def insert(table: torch.Tensor, drafts: torch.Tensor) -> None:
    """Make drafts int32 [turns, 16] of each part the ids of its columns after the first."""
    _insert[(1,)](table, drafts, COLUMNS=COLUMNS, IDS=IDS, FIRST=FIRST, COUNT=COUNT, num_warps=1)
