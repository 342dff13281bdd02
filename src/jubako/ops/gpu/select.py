"""The exact choice of the best blocks by their scores: for a step's columns by `choice.py`, here for prompts.

One program takes one query. First the scores' upper 13 bits in two passes: the bucket in which the budget runs out.
Blocks above it are chosen, those in it become candidates, from which the exact bound is found; of the blocks at the
bound the lower ones win. The order of a row is fixed: chosen outright by rising index, then of the candidates.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .choice import LISTED, ColumnChoice, from_above, take_best
from .columns import Columns
from .index import score_columns, score_prompt
from .state import AttentionMemory

CHUNK = 1024  # scores read at a time
SCORE_BYTES = 60 << 20  # most memory for the scores of a prompt's queries, and as much again for their candidates
FEW = 264  # rows of scores that fill a card's multiprocessors less than twice, so that each gets more warps


@triton.jit
def _select(
    scores, blocks, chosen, candidates, positions, max_blocks,
    BUDGET: tl.constexpr, BUDGET_BLOCK: tl.constexpr, RATIO: tl.constexpr, CHUNK: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    complete = (tl.load(positions + t) + 1) // RATIO
    keys = (scores + t * max_blocks).to(tl.pointer_type(tl.int32), bitcast=True)
    out = blocks + t * BUDGET
    few = tl.arange(0, BUDGET_BLOCK)
    i = tl.arange(0, CHUNK)
    tl.store(chosen + t, tl.minimum(complete, BUDGET))
    if complete <= BUDGET:
        tl.store(out + few, tl.where(few < complete, few, -1), mask=few < BUDGET)
    else:
        # the upper seven bits, then the next six
        high = tl.zeros([128], tl.int32)
        for start in range(0, complete, CHUNK):
            key = tl.load(keys + start + i, mask=start + i < complete, other=0)
            high += tl.histogram(key >> 24, 128, mask=start + i < complete)
        digit, above = from_above(high, BUDGET, 128)
        low = tl.zeros([64], tl.int32)
        for start in range(0, complete, CHUNK):
            key = tl.load(keys + start + i, mask=start + i < complete, other=0)
            low += tl.histogram((key >> 18) & 63, 64, mask=(start + i < complete) & ((key >> 24) == digit))
        next_digit, more = from_above(low, BUDGET - above, 64)
        bucket = digit * 64 + next_digit
        above += more
        # one pass in order: those above the bucket are chosen, those in it are candidates
        taken = 0
        listed = 0
        spare = candidates + t * max_blocks
        for start in range(0, complete, CHUNK):
            inside = start + i < complete
            key = tl.load(keys + start + i, mask=inside, other=0)
            better = (inside & ((key >> 18) > bucket)).to(tl.int32)
            equal = (inside & ((key >> 18) == bucket)).to(tl.int32)
            ranks = tl.cumsum(better + (equal << 16), 0)
            tl.store(out + taken + (ranks & 0xFFFF) - 1, start + i, mask=better > 0)
            tl.store(spare + listed + (ranks >> 16) - 1, start + i, mask=equal > 0)
            taken += tl.sum(better, 0)
            listed += tl.sum(equal, 0)
        tl.debug_barrier()
        take_best(spare, keys, listed, BUDGET - above, out + above, bucket, 18, 6, LISTED)


class Selector:
    """The choice of blocks, with the memory it works in. budget: most blocks of a query."""

    def __init__(self, budget: int, max_blocks: int, columns: int, device: torch.device) -> None:
        self.budget = budget
        self.columns = ColumnChoice(budget, max_blocks, columns, device)

    def takes_all(self, ratio: int, columns: Columns) -> bool:
        """Whether every query of a piece of a prompt has room for all blocks before it."""
        return columns.parts is None and (columns.start + columns.tokens) // ratio <= self.budget

    def __call__(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks int32 [T, budget] that the index queries q [T, heads, D] choose, and how many: int32 [T].

        What lies beyond a query's count means nothing.
        """
        tokens = len(q)
        blocks = torch.empty(tokens, self.budget, dtype=torch.int32, device=q.device)
        chosen = torch.empty(tokens, dtype=torch.int32, device=q.device)
        if columns.parts is not None:
            score_columns(q, memory, columns, self.columns.scores, self.columns.counts, self.budget)
            self.columns.choose(columns.positions, memory.ratio, blocks, chosen)
            return blocks, chosen
        width = max(16, -(-(columns.start + tokens) // memory.ratio // 16) * 16)
        rows = max(16, min(tokens, SCORE_BYTES // (4 * width)))
        scores = torch.empty(rows, width, dtype=torch.float32, device=q.device)
        spare = torch.empty(rows, width, dtype=torch.int32, device=q.device)
        for start in range(0, tokens, rows):
            part = slice(start, min(start + rows, tokens))
            score_prompt(q[part], memory, columns.slot, columns.start + start, scores)
            choose_prompt(scores, spare, columns.positions[part], blocks[part], chosen[part], memory.ratio)
        return blocks, chosen


def choose_prompt(
    scores: torch.Tensor, candidates: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor,
    chosen: torch.Tensor, ratio: int,
) -> None:  # fmt: skip
    """Of blocks scored [rows, max_blocks], the best for queries at `positions` [T] into blocks [T, budget]; chosen [T].

    candidates int32 [rows, max_blocks] is memory to work in.
    """
    budget = blocks.shape[1]
    _select[(len(blocks),)](
        scores, blocks, chosen, candidates, positions, scores.shape[1],
        BUDGET=budget, BUDGET_BLOCK=triton.next_power_of_2(budget), RATIO=ratio, CHUNK=CHUNK, LISTED=LISTED,
        num_warps=8 if len(scores) <= FEW else 4,
    )  # fmt: skip
