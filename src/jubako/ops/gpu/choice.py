"""The exact choice of the best blocks for a step's columns, by many programs each.

    counts [16, BINS] ─► the bin in which the budget runs out: blocks above it are chosen, those in it are candidates
    program of CHUNK blocks ─► a list of its own: chosen ones from its front, candidates from its back
    the last program of a column to finish ─► lists in order; then candidates by their scores' bits, eight a pass

Of blocks whose scores are equal the lower ones win. The order of a row is fixed: chosen outright by rising index, then
of the candidates.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .index import BIN_BITS, BINS, LOWEST, bin_of
from .launch import INTERPRETED, overlapped
from .target import release, target, wait

CHUNK, WARPS = 2048, 8
LISTED = 1024  # candidates looked at together


@triton.jit
def from_above(counts, wanted, BINS: tl.constexpr):
    """The bin of counts [BINS] in which the `wanted`-th entry from above lies, and how many entries lie above it."""
    reached = tl.cumsum(counts, 0, reverse=True)
    bins = tl.arange(0, BINS)
    found = tl.max(tl.where(reached >= wanted, bins, 0), 0)
    above = tl.sum(tl.where(bins > found, counts, 0), 0)
    return found, above


@triton.jit
def _found(sizes, ends, place):
    """The list of `sizes` entries each, up to `ends`, in which an entry of all together lies, and where in it."""
    before = ends[None, :] <= place[:, None]
    return tl.sum(before.to(tl.int32), 1), place - tl.sum(tl.where(before, sizes[None, :], 0), 1)


@triton.jit
def narrowed(candidates, keys, listed, wanted, bound, OPEN: tl.constexpr, STEP: tl.constexpr, LISTED: tl.constexpr):
    """The score's bits of the `wanted`-th best candidate, and how many of those equal to it are wanted.

    bound: the upper bits, which all candidates share, but for OPEN ones that are found STEP at a time.
    """
    digits: tl.constexpr = 1 << STEP
    for n in range(0, OPEN, STEP):
        shift = OPEN - STEP - n
        tally = tl.zeros([digits], tl.int32)
        for start in range(0, listed, LISTED):
            j = start + tl.arange(0, LISTED)
            block = tl.load(candidates + j, mask=j < listed, other=0)
            key = tl.load(keys + block, mask=j < listed, other=0)
            same = (j < listed) & (((key >> shift) >> STEP) == bound)
            tally += tl.histogram((key >> shift) & (digits - 1), digits, mask=same)
        digit, over = from_above(tally, wanted, digits)
        wanted -= over
        bound = bound * digits + digit
    return bound, wanted


@triton.jit
def _choose_columns(
    scores, counts, blocks, chosen, lists, sizes, candidates, arrived, positions, max_blocks, room,
    BUDGET: tl.constexpr, BUDGET_BLOCK: tl.constexpr, RATIO: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    LISTED: tl.constexpr, BIN_BITS: tl.constexpr, BINS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (chunk, column). lists [16, room]: a piece of CHUNK for each program; sizes [16, CHUNKS].

    EARLY (see `Columns`): programs without work end before the wait; a column's first one has some.
    """
    release(OVERLAP)
    wait(OVERLAP and not EARLY)
    chunk, t = tl.program_id(0), tl.program_id(1).to(tl.int64)
    complete = (tl.load(positions + t) + 1) // RATIO
    out = blocks + t * BUDGET
    few = tl.arange(0, BUDGET_BLOCK)
    if complete <= BUDGET:
        if chunk == 0:
            wait(OVERLAP and EARLY)
            tl.store(chosen + t, complete)
            tl.store(out + few, tl.where(few < complete, few, -1), mask=few < BUDGET)
    elif chunk * CHUNK < complete:
        wait(OVERLAP and EARLY)
        bins = counts + t * BINS + tl.arange(0, BINS)
        bound, above = from_above(tl.load(bins), BUDGET, BINS)
        keys = (scores + t * max_blocks).to(tl.pointer_type(tl.int32), bitcast=True)
        block = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = block < complete
        bin = bin_of(tl.load(keys + block, mask=inside, other=0), BIN_BITS, BINS, LOWEST)
        better, equal = inside & (bin > bound), inside & (bin == bound)
        kinds = better.to(tl.int32) + (equal.to(tl.int32) << 16)
        ranks = tl.cumsum(kinds, 0)
        lists += t * room
        own = lists + chunk * CHUNK
        tl.store(own + (ranks & 0xFFFF) - 1, block, mask=better)
        tl.store(own + CHUNK - (ranks >> 16), block, mask=equal)
        tl.store(sizes + t * CHUNKS + chunk, tl.sum(kinds, 0))
        tl.debug_barrier()
        before = tl.atomic_add(arrived + t, 1, sem="acq_rel")
        if before == tl.cdiv(complete, CHUNK) - 1:
            tl.store(arrived + t, 0)
            tl.store(bins, tl.zeros([BINS], tl.int32))
            tl.store(chosen + t, BUDGET)
            c = tl.arange(0, CHUNKS)
            size = tl.load(sizes + t * CHUNKS + c, mask=c * CHUNK < complete, other=0, volatile=True)
            chosen_there, listed_there = size & 0xFFFF, size >> 16
            of, within = _found(chosen_there, tl.cumsum(chosen_there, 0), few)
            first = tl.load(lists + of * CHUNK + within, mask=few < above, other=0, volatile=True)
            tl.store(out + few, first, mask=few < above)
            ends = tl.cumsum(listed_there, 0)
            listed = tl.sum(listed_there, 0)
            wanted = BUDGET - above
            out += above
            if listed <= LISTED:
                j = tl.arange(0, LISTED)
                there = j < listed
                at, back = _found(listed_there, ends, j)
                one = tl.load(lists + at * CHUNK + CHUNK - 1 - back, mask=there, other=0, volatile=True)
                key = tl.load(keys + one, mask=there, other=0)
                if (bound > 0) & (bound < BINS - 1):  # the upper bits of all candidates are the bin's
                    last, ties = narrowed_here(key, there, wanted, bound + LOWEST, BIN_BITS, BIN_BITS // 4)
                else:
                    last, ties = narrowed_here(key, there, wanted, above * 0, 32, 8)
                store_best(one, key, there, last, ties, 0, 0, out)
            else:
                candidates += t * max_blocks
                for start in range(0, listed, LISTED):
                    j = start + tl.arange(0, LISTED)
                    at, back = _found(listed_there, ends, j)
                    one = tl.load(lists + at * CHUNK + CHUNK - 1 - back, mask=j < listed, other=0, volatile=True)
                    tl.store(candidates + j, one, mask=j < listed)
                tl.debug_barrier()
                take_best(candidates, keys, listed, wanted, out, above * 0, 32, 8, LISTED)


@triton.jit
def narrowed_here(key, there, wanted, bound, OPEN: tl.constexpr, STEP: tl.constexpr):
    """`narrowed` of candidates whose scores' bits are at hand: key [n], where there."""
    digits: tl.constexpr = 1 << STEP
    for n in range(0, OPEN, STEP):
        shift = OPEN - STEP - n
        same = there & (((key >> shift) >> STEP) == bound)
        tally = tl.histogram((key >> shift) & (digits - 1), digits, mask=same)
        digit, over = from_above(tally, wanted, digits)
        wanted -= over
        bound = bound * digits + digit
    return bound, wanted


@triton.jit
def store_best(block, key, there, bound, ties_wanted, taken, ties, out):
    """Blocks whose scores' bits are above the bound, and the first `ties_wanted` of those at it, to `out` after `taken`
    others; `ties` were at the bound before. Gives both numbers after these blocks."""
    tie = (there & (key == bound)).to(tl.int32)
    rank = ties + tl.cumsum(tie, 0)
    take = (there & ((key > bound) | ((tie > 0) & (rank <= ties_wanted)))).to(tl.int32)
    tl.store(out + taken + tl.cumsum(take, 0) - 1, block, mask=take > 0)
    return taken + tl.sum(take, 0), ties + tl.sum(tie, 0)


@triton.jit
def take_best(
    candidates, keys, listed, wanted, out, bound, OPEN: tl.constexpr, STEP: tl.constexpr, LISTED: tl.constexpr
):
    """The `wanted` best of the candidates to `out`, in their order; of equal ones the first. Else: `narrowed`."""
    bound, ties_wanted = narrowed(candidates, keys, listed, wanted, bound, OPEN, STEP, LISTED)
    taken = 0
    ties = 0
    for start in range(0, listed, LISTED):
        j = start + tl.arange(0, LISTED)
        block = tl.load(candidates + j, mask=j < listed, other=0)
        key = tl.load(keys + block, mask=j < listed, other=0)
        taken, ties = store_best(block, key, j < listed, bound, ties_wanted, taken, ties, out)


class ColumnChoice:
    """Scores of a step's columns, and the memory that choosing works in. counts and arrived are zero between steps."""

    def __init__(self, budget: int, max_blocks: int, columns: int, device: torch.device) -> None:
        def room(width: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(columns, width, dtype=kind, device=device)

        self.budget = budget
        self.chunk = 64 if INTERPRETED else CHUNK
        chunks = -(-max_blocks // self.chunk)
        self.scores = room(max_blocks, torch.float32)
        self.counts = room(BINS)
        self.lists = room(chunks * self.chunk)
        self.sizes = room(triton.next_power_of_2(chunks))
        self.candidates = room(max_blocks)
        self.arrived = room(1)

    def choose(
        self, positions: torch.Tensor, ratio: int, blocks: torch.Tensor, chosen: torch.Tensor, early: bool = False
    ) -> None:
        """Of blocks scored and counted, the best for columns at `positions` [T] into blocks [T, budget]; chosen [T].

        early: of `Columns`.
        """
        max_blocks, room, to = self.scores.shape[1], self.lists.shape[1], target(blocks.device)
        few = {"maxnreg": 128} if to.overlap else {}  # else a program waits for a multiprocessor that is all empty
        _choose_columns[(room // self.chunk, len(positions))](
            self.scores, self.counts, blocks, chosen, self.lists, self.sizes, self.candidates, self.arrived, positions,
            max_blocks, room, BUDGET=self.budget, BUDGET_BLOCK=triton.next_power_of_2(self.budget), RATIO=ratio,
            CHUNK=self.chunk, CHUNKS=self.sizes.shape[1], LISTED=LISTED, BIN_BITS=BIN_BITS, BINS=BINS, LOWEST=LOWEST,
            EARLY=early, OVERLAP=to.overlap, num_warps=WARPS, **few, **overlapped(blocks.device),
        )  # fmt: skip
