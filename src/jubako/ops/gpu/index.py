"""Scores of index blocks: how well each complete block's key answers a query's index heads.

score = sum over heads of max(0, q · key) / √D, float32. A score's bits grow with it, so that the choice works on
integers. For a step's columns the scores are also counted by their upper bits (bins), the first pass of the choice.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .columns import BASE, COUNT, FIRST, PART_SLOT, Columns
from .launch import COLUMNS, exact, has_tf32, overlapped, power_of_two
from .state import PAGE, AttentionMemory
from .target import release, target, wait

BIN_BITS, BINS = 20, 256  # lower bits of a score that a bin leaves open; an eighth of an octave each
LOWEST = 107 << 3  # the upper bits of 2^-20: what is less lies in the first bin, what is 2^12 or more in the last
CHUNK = 256  # blocks that a program scores and counts for a step, TILE at a time
TILE = 64  # twice as many where keys are halves and products of them are fast


@triton.jit
def _product(q, keys, PRECISION: tl.constexpr):
    """q [M, D] float32 · keys [B, D] transposed. Half keys meet q in two halves, which together hold 22 bits of it."""
    if keys.dtype == tl.float16:
        high = q.to(tl.float16)
        low = (q - high.to(tl.float32)).to(tl.float16)
        return tl.dot(low, tl.trans(keys)) + tl.dot(high, tl.trans(keys))
    else:
        return tl.dot(q, tl.trans(keys), input_precision=PRECISION)


@triton.jit
def _load_keys(pooled, pages, page_stride, slot, blocks, known, d, D: tl.constexpr, PER_PAGE: tl.constexpr):
    """Keys [B, D] of index blocks; zeros where not known."""
    page = tl.load(pages + slot * page_stride + blocks // PER_PAGE, mask=known, other=0).to(tl.int64)
    row = page * PER_PAGE + blocks % PER_PAGE
    return tl.load(pooled + row[:, None] * D + d[None, :], mask=known[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def bin_of(key, BIN_BITS: tl.constexpr, BINS: tl.constexpr, LOWEST: tl.constexpr):
    """The bin of a score's bits."""
    return tl.minimum(tl.maximum((key >> BIN_BITS) - LOWEST, 0), BINS - 1)


@triton.jit
def _score_columns(
    q, scores, counts, pooled, pages, page_stride, parts, scale, max_blocks,
    BUDGET: tl.constexpr, HEADS: tl.constexpr, HEAD_ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    RATIO: tl.constexpr, PER_PAGE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, PART_SLOT: tl.constexpr, BASE: tl.constexpr,
    BIN_BITS: tl.constexpr, BINS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """CHUNK blocks for all columns of one part. Where no column has more than BUDGET blocks, none is scored.

    EARLY (see `Columns`): programs without work end before the wait, but for one; else this launch might be over before
    the ones in front are, for which those behind wait by waiting for this one.
    """
    release(OVERLAP)
    wait(OVERLAP and not EARLY)
    part = tl.program_id(1)
    count = tl.load(parts + COUNT * COLUMNS + part)
    base = tl.load(parts + BASE * COLUMNS + part)
    start = tl.program_id(0) * CHUNK
    last = (base + count) // RATIO
    if (count > 0) & (start < last) & (last > BUDGET):
        wait(OVERLAP and EARLY)
        first = tl.load(parts + FIRST * COLUMNS + part)
        slot = tl.load(parts + PART_SLOT * COLUMNS + part)
        d = tl.arange(0, BLOCK_D)
        together: tl.constexpr = 16 // HEAD_ROWS  # columns in one product
        row = tl.arange(0, 16)
        for group in range(0, tl.cdiv(count, together)):
            column = group * together + row // HEAD_ROWS
            inside = (column < count) & (row % HEAD_ROWS < HEADS)
            place = ((first + column) * HEADS + row % HEAD_ROWS) * D
            queries = tl.load(q + place[:, None] + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
            column = group * together + tl.arange(0, together)
            complete = (base + column + 1) // RATIO
            out = (scores + (first + column).to(tl.int64) * max_blocks)[:, None]
            for tile in range(start, tl.minimum(start + CHUNK, last), TILE):
                blocks = tile + tl.arange(0, TILE)
                keys = _load_keys(pooled, pages, page_stride, slot, blocks, blocks < last, d, D, PER_PAGE)
                product = tl.maximum(_product(queries, keys, PRECISION), 0.0)
                score = tl.sum(tl.reshape(product, [together, HEAD_ROWS, TILE]), 1) * scale
                wanted = (column < count)[:, None] & (blocks[None, :] < complete[:, None])
                tl.store(out + blocks[None, :], score, mask=wanted)
        tl.debug_barrier()
        blocks = start + tl.arange(0, CHUNK)
        for own in range(0, count):
            complete_own = (base + own + 1) // RATIO
            if complete_own > BUDGET:
                there = blocks < complete_own
                place_own = scores + (first + own).to(tl.int64) * max_blocks
                key = tl.load(place_own + blocks, mask=there, other=0.0).to(tl.int32, bitcast=True)
                tally = tl.histogram(bin_of(key, BIN_BITS, BINS, LOWEST), BINS, mask=there)
                bins = counts + (first + own) * BINS + tl.arange(0, BINS)
                tl.atomic_add(bins, tally, mask=tally > 0, sem="relaxed")
    elif start + part == 0:
        wait(OVERLAP and EARLY)


def score_columns(
    q: torch.Tensor, memory: AttentionMemory, columns: Columns, scores: torch.Tensor, counts: torch.Tensor, budget: int
) -> None:
    """Scores of a step's columns into scores [16, max_blocks], and how many fall into each bin into counts [16, BINS],
    which must be zero before. Columns with at most `budget` blocks are not counted, and may lack scores."""
    tokens, heads, dim = q.shape
    assert columns.parts is not None
    max_blocks = scores.shape[1]
    tile = 2 * TILE if memory.pooled.dtype == torch.float16 and has_tf32(q.device) else TILE
    _score_columns[(-(-max_blocks // CHUNK), tokens)](
        q, scores, counts, memory.pooled, memory.pages, memory.pages.stride(0), columns.parts,
        1 / math.sqrt(dim), max_blocks,
        BUDGET=budget, HEADS=heads, HEAD_ROWS=power_of_two(heads), D=dim, BLOCK_D=max(16, power_of_two(dim)),
        RATIO=memory.ratio, PER_PAGE=PAGE // memory.ratio, CHUNK=CHUNK, TILE=tile, COLUMNS=COLUMNS,
        PRECISION=exact(q.device), FIRST=FIRST, COUNT=COUNT, PART_SLOT=PART_SLOT, BASE=BASE,
        BIN_BITS=BIN_BITS, BINS=BINS, LOWEST=LOWEST, EARLY=columns.early,
        OVERLAP=target(q.device).overlap, num_warps=4, **overlapped(q.device),
    )  # fmt: skip
