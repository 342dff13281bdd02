"""The exact choice of the best blocks by their scores: a radix search for the score of the last one that fits.

One program takes one query. First the scores' upper 13 bits: the bucket in which the budget runs out. Blocks above it
are chosen, those in it become candidates, and six bits a pass find the exact bound among them; of the blocks at the
bound the lower ones win. The order of a row is fixed: chosen outright by rising index, then of the candidates.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .columns import Columns
from .index import BUCKET_BITS, BUCKETS, score_columns, score_prompt
from .launch import INTERPRETED, overlapped
from .state import AttentionMemory
from .target import release, target, wait

CHUNK, WARPS = 8192, 16  # scores read at a time for a step's columns; a prompt's programs are many and small
PROMPT_CHUNK = 1024
SCORE_BYTES = 60 << 20  # most memory for the scores of a prompt's queries


@triton.jit
def _from_above(counts, wanted, BINS: tl.constexpr):
    """The bin of counts [BINS] in which the `wanted`-th entry from above lies, and how many entries lie above it."""
    reached = tl.cumsum(counts, 0, reverse=True)
    bins = tl.arange(0, BINS)
    found = tl.max(tl.where(reached >= wanted, bins, 0), 0)
    above = tl.sum(tl.where(bins > found, counts, 0), 0)
    return found, above


@triton.jit
def _select(
    scores, counts, blocks, chosen, candidates, positions, max_blocks,
    BUDGET: tl.constexpr, BUDGET_BLOCK: tl.constexpr, RATIO: tl.constexpr, CHUNK: tl.constexpr,
    BUCKET_BITS: tl.constexpr, BUCKETS: tl.constexpr, COUNTED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    release(OVERLAP)
    wait(OVERLAP)
    t = tl.program_id(0).to(tl.int64)
    complete = (tl.load(positions + t) + 1) // RATIO
    keys = (scores + t * max_blocks).to(tl.pointer_type(tl.int32), bitcast=True)
    out = blocks + t * BUDGET
    few = tl.arange(0, BUDGET_BLOCK)
    i = tl.arange(0, CHUNK)
    if COUNTED:
        tally = tl.load(counts + t * BUCKETS + tl.arange(0, BUCKETS))
        tl.store(counts + t * BUCKETS + tl.arange(0, BUCKETS), tl.zeros([BUCKETS], tl.int32))
    tl.store(chosen + t, tl.minimum(complete, BUDGET))
    if complete <= BUDGET:
        tl.store(out + few, tl.where(few < complete, few, -1), mask=few < BUDGET)
    else:
        if COUNTED:
            bucket, above = _from_above(tally, BUDGET, BUCKETS)
        else:
            # the upper seven bits, then the next six
            high = tl.zeros([128], tl.int32)
            for start in range(0, complete, CHUNK):
                key = tl.load(keys + start + i, mask=start + i < complete, other=0)
                high += tl.histogram(key >> 24, 128, mask=start + i < complete)
            digit, above = _from_above(high, BUDGET, 128)
            low = tl.zeros([64], tl.int32)
            for start in range(0, complete, CHUNK):
                key = tl.load(keys + start + i, mask=start + i < complete, other=0)
                low += tl.histogram((key >> 18) & 63, 64, mask=(start + i < complete) & ((key >> 24) == digit))
            next_digit, more = _from_above(low, BUDGET - above, 64)
            bucket = digit * 64 + next_digit
            above += more
        # one pass in order: those above the bucket are chosen, those in it are candidates
        taken = 0
        listed = 0
        spare = candidates + t * max_blocks
        for start in range(0, complete, CHUNK):
            inside = start + i < complete
            key = tl.load(keys + start + i, mask=inside, other=0)
            better = (inside & ((key >> BUCKET_BITS) > bucket)).to(tl.int32)
            equal = (inside & ((key >> BUCKET_BITS) == bucket)).to(tl.int32)
            ranks = tl.cumsum(better + (equal << 16), 0)
            tl.store(out + taken + (ranks & 0xFFFF) - 1, start + i, mask=better > 0)
            tl.store(spare + listed + (ranks >> 16) - 1, start + i, mask=equal > 0)
            taken += tl.sum(better, 0)
            listed += tl.sum(equal, 0)
        tl.debug_barrier()
        # six bits a pass among the candidates: bound grows to the exact score of the last one chosen
        wanted = BUDGET - above
        bound = bucket
        for shift in tl.static_range(BUCKET_BITS - 6, -1, -6):
            tally6 = tl.zeros([64], tl.int32)
            for start in range(0, listed, 1024):
                j = start + tl.arange(0, 1024)
                block = tl.load(spare + j, mask=j < listed, other=0)
                key = tl.load(keys + block, mask=j < listed, other=0)
                same = (j < listed) & ((key >> (shift + 6)) == bound)
                tally6 += tl.histogram((key >> shift) & 63, 64, mask=same)
            digit6, over = _from_above(tally6, wanted, 64)
            wanted -= over
            bound = bound * 64 + digit6
        ties = 0
        for start in range(0, listed, 1024):
            j = start + tl.arange(0, 1024)
            block = tl.load(spare + j, mask=j < listed, other=0)
            key = tl.load(keys + block, mask=j < listed, other=0)
            tie = ((j < listed) & (key == bound)).to(tl.int32)
            rank = ties + tl.cumsum(tie, 0)
            take = ((j < listed) & ((key > bound) | ((tie > 0) & (rank <= wanted)))).to(tl.int32)
            tl.store(out + taken + tl.cumsum(take, 0) - 1, block, mask=take > 0)
            taken += tl.sum(take, 0)
            ties += tl.sum(tie, 0)


class Selector:
    """The choice of blocks, with the memory it works in. budget: most blocks of a query."""

    def __init__(self, budget: int, max_blocks: int, columns: int, device: torch.device) -> None:
        self.budget = budget
        self.max_blocks = max_blocks
        self.scores = torch.zeros(columns, max_blocks, dtype=torch.float32, device=device)
        self.candidates = torch.zeros(columns, max_blocks, dtype=torch.int32, device=device)
        self.counts = torch.zeros(columns, BUCKETS, dtype=torch.int32, device=device)

    def __call__(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks int32 [T, budget] that the index queries q [T, heads, D] choose, and how many: int32 [T].

        What lies beyond a query's count means nothing.
        """
        tokens = len(q)
        blocks = torch.empty(tokens, self.budget, dtype=torch.int32, device=q.device)
        chosen = torch.empty(tokens, dtype=torch.int32, device=q.device)
        if columns.parts is not None:
            score_columns(q, memory, columns, self.scores, self.counts)
            self._choose(self.scores, self.candidates, columns.positions, blocks, chosen, memory.ratio, counted=True)
            return blocks, chosen
        width = max(16, -(-(columns.start + tokens) // memory.ratio // 16) * 16)
        rows = max(16, min(tokens, SCORE_BYTES // (8 * width)))
        scores = torch.empty(rows, width, dtype=torch.float32, device=q.device)
        spare = torch.empty(rows, width, dtype=torch.int32, device=q.device)
        for start in range(0, tokens, rows):
            part = slice(start, min(start + rows, tokens))
            score_prompt(q[part], memory, columns.slot, columns.start + start, scores)
            self._choose(
                scores, spare, columns.positions[part], blocks[part], chosen[part], memory.ratio, counted=False
            )
        return blocks, chosen

    def _choose(
        self, scores: torch.Tensor, candidates: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor,
        chosen: torch.Tensor, ratio: int, counted: bool,
    ) -> None:  # fmt: skip
        chunk = CHUNK if counted and not INTERPRETED else PROMPT_CHUNK
        _select[(len(blocks),)](
            scores, self.counts, blocks, chosen, candidates, positions, scores.shape[1],
            BUDGET=self.budget, BUDGET_BLOCK=triton.next_power_of_2(self.budget), RATIO=ratio,
            CHUNK=chunk, BUCKET_BITS=BUCKET_BITS, BUCKETS=BUCKETS, COUNTED=counted,
            OVERLAP=target(scores.device).overlap, num_warps=WARPS if counted else 4, **overlapped(scores.device),
        )  # fmt: skip
