"""Scores of index blocks for a prompt's queries, and the exact choice of the best of them.

    a program of scores: ROWS queries, SPAN blocks one tile after the other ─► scores, and the best of each GROUP
    a program of the choice: one query
        the bound at which BUDGET groups have a block as good: their best ones' upper 13 bits, in two passes
        groups with such a block ─► their blocks that are as good: candidates, few more than the budget
        the exact bound of the candidates by their scores' bits, eight a pass; of blocks at it the lower ones win

At least BUDGET blocks are as good as the groups' bound, so that all chosen ones are candidates. A score's bits grow
with it (index.py). The order of a row is fixed: candidates in rising order.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .cells import page_number
from .choice import from_above, narrowed_here, store_best, take_best
from .columns import Columns
from .launch import exact, power_of_two
from .state import PAGE, AttentionMemory
from .target import target

GROUP = 8  # blocks
CHUNK = 1024  # groups' best, or blocks, looked at together
SPAN, TILE = 1024, 128  # blocks that a program scores, and together
SCORE_BYTES = 62 << 20  # most memory for the scores of a prompt's queries and the best of their groups
ROWS = 64  # queries are scored that many at a time


@triton.jit(do_not_specialize=["slot", "position", "tokens"])
def _score_prompt(
    q, scores, tops, pooled, pages, page_stride, slot, position, tokens, scale, max_blocks,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, RATIO: tl.constexpr, PER_PAGE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """ROWS queries against SPAN blocks. Where keys are halves, halves of the queries. Of a block that a query does not
    see the score is -1."""
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    last = (position + tl.minimum(tl.program_id(1) * ROWS + ROWS, tokens)) // RATIO
    first = tl.program_id(0) * SPAN
    d = tl.arange(0, BLOCK_D)
    inside = (t < tokens)[:, None] & (d < D)[None, :]
    queries = ()
    for head in tl.static_range(HEADS):
        one = tl.load(q + ((t * HEADS + head) * D)[:, None] + d[None, :], mask=inside, other=0.0)
        queries = queries + (one.to(pooled.dtype.element_ty),)
    pages += slot.to(tl.int64) * page_stride
    complete = (position + t + 1) // RATIO
    block = tl.arange(0, TILE)
    of_group = tl.arange(0, TILE // GROUP)
    row = t.to(tl.int64)[:, None] * max_blocks
    groups_row = t.to(tl.int64)[:, None] * (max_blocks // GROUP)
    for start in tl.range(first, tl.minimum(first + SPAN, last), TILE, num_stages=STAGES):
        known = tl.minimum(start + block, last - 1)
        place = page_number(pages + known // PER_PAGE) * PER_PAGE + known % PER_PAGE
        if D == BLOCK_D:
            keys = tl.load(pooled + place[:, None] * D + d[None, :])
        else:
            keys = tl.load(pooled + place[:, None] * D + d[None, :], mask=(d < D)[None, :], other=0.0)
        score = tl.zeros([ROWS, TILE], tl.float32)
        for head in tl.static_range(HEADS):
            if keys.dtype == tl.float16:
                product = tl.dot(queries[head], tl.trans(keys))
            else:
                product = tl.dot(queries[head], tl.trans(keys), input_precision=PRECISION)
            score += tl.maximum(product, 0.0)
        score = tl.where((start + block)[None, :] < complete[:, None], score * scale, -1.0)
        best = tl.max(tl.reshape(score, [ROWS, TILE // GROUP, GROUP]), 2)
        live = (t < tokens)[:, None]
        tl.store(scores + row + (start + block)[None, :], score, mask=live & (start + block < max_blocks)[None, :])
        group = start // GROUP + of_group
        tl.store(tops + groups_row + group[None, :], best, mask=live & (group < max_blocks // GROUP)[None, :])


@triton.jit
def _candidates_of(groups, keys, listed, complete, bound, out, GROUP: tl.constexpr, CHUNK: tl.constexpr):
    """The blocks of listed groups whose upper bits are at least `bound`, in their order, to out; how many."""
    EACH: tl.constexpr = CHUNK // GROUP
    i = tl.arange(0, EACH)
    found = 0
    for start in range(0, listed, EACH):
        there = start + i < listed
        group = tl.load(groups + start + i, mask=there, other=0)
        block = tl.reshape(group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], [CHUNK])
        seen = tl.reshape(there[:, None] & (tl.arange(0, GROUP) >= 0)[None, :], [CHUNK]) & (block < complete)
        key = tl.load(keys + block, mask=seen, other=0)
        good = (seen & ((key >> 18) >= bound)).to(tl.int32)
        tl.store(out + found + tl.cumsum(good, 0) - 1, block, mask=good > 0)
        found += tl.sum(good, 0)
    return found


@triton.jit
def _select(
    scores, tops, blocks, chosen, candidates, positions, max_blocks,
    BUDGET: tl.constexpr, BUDGET_BLOCK: tl.constexpr, RATIO: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program t. tops [rows, max_blocks / GROUP]: afterwards the groups that have candidates, in rising order."""
    t = tl.program_id(0).to(tl.int64)
    complete = (tl.load(positions + t) + 1) // RATIO
    keys = (scores + t * max_blocks).to(tl.pointer_type(tl.int32), bitcast=True)
    best = (tops + t * (max_blocks // GROUP)).to(tl.pointer_type(tl.int32), bitcast=True)
    out = blocks + t * BUDGET
    few = tl.arange(0, BUDGET_BLOCK)
    i = tl.arange(0, CHUNK)
    tl.store(chosen + t, tl.minimum(complete, BUDGET))
    if complete <= BUDGET:
        tl.store(out + few, tl.where(few < complete, few, -1), mask=few < BUDGET)
    else:
        groups = tl.cdiv(complete, GROUP)
        bound, wanted = groups * 0, groups * 0 + BUDGET
        if groups > BUDGET:
            high = tl.zeros([128], tl.int32)
            for start in range(0, groups, CHUNK):
                key = tl.load(best + start + i, mask=start + i < groups, other=0)
                high += tl.histogram(key >> 24, 128, mask=start + i < groups)
            digit, above = from_above(high, BUDGET, 128)
            low = tl.zeros([64], tl.int32)
            for start in range(0, groups, CHUNK):
                key = tl.load(best + start + i, mask=start + i < groups, other=0)
                low += tl.histogram((key >> 18) & 63, 64, mask=(start + i < groups) & ((key >> 24) == digit))
            next_digit, more = from_above(low, BUDGET - above, 64)
            bound = digit * 64 + next_digit
        listed = 0
        for start in range(0, groups, CHUNK):  # a list is never longer than what was read for it
            key = tl.load(best + start + i, mask=start + i < groups, other=0)
            good = ((start + i < groups) & ((key >> 18) >= bound)).to(tl.int32)
            tl.store(best + listed + tl.cumsum(good, 0) - 1, start + i, mask=good > 0)
            listed += tl.sum(good, 0)
        tl.debug_barrier()
        spare = candidates + t * max_blocks
        found = _candidates_of(best, keys, listed, complete, bound, spare, GROUP, CHUNK)
        tl.debug_barrier()
        if found <= CHUNK:
            there = i < found
            block = tl.load(spare + i, mask=there, other=0)
            key = tl.load(keys + block, mask=there, other=0)
            last, ties = narrowed_here(key, there, wanted, bound * 0, 32, 8)
            store_best(block, key, there, last, ties, 0, 0, out)
        else:
            take_best(spare, keys, found, wanted, out, bound * 0, 32, 8, CHUNK)


def score_prompt(
    q: torch.Tensor, memory: AttentionMemory, slot: int, position: int, scores: torch.Tensor, tops: torch.Tensor
) -> None:
    """Scores of the queries q [T, heads, D] that stand at `position` and after into scores [T, max_blocks], the best
    of each GROUP into tops [T, max_blocks / GROUP]; -1 where a query does not see a block."""
    tokens, heads, dim = q.shape
    blocks, to = (position + tokens) // memory.ratio, target(q.device)
    halves = memory.pooled.dtype == torch.float16
    rows, tile, stages = (ROWS, TILE, 3) if to.stages > 1 and halves else (16, 64, 1)
    if not to.dot:  # products take plain registers, and the compiler minutes
        rows, tile = 16, 16
    _score_prompt[(-(-blocks // SPAN), -(-tokens // rows))](
        q, scores, tops, memory.pooled, memory.pages, memory.pages.stride(0), slot, position, tokens,
        1 / math.sqrt(dim), scores.stride(0),
        HEADS=heads, D=dim, BLOCK_D=max(16, power_of_two(dim)), RATIO=memory.ratio, PER_PAGE=PAGE // memory.ratio,
        ROWS=rows, TILE=tile, SPAN=SPAN, GROUP=GROUP, STAGES=stages, PRECISION=exact(q.device),
        num_warps=8 if stages > 1 else 4,
    )  # fmt: skip


def choose_prompt(
    scores: torch.Tensor, tops: torch.Tensor, candidates: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor,
    chosen: torch.Tensor, ratio: int,
) -> None:  # fmt: skip
    """Of blocks scored [rows, max_blocks], the best for queries at `positions` [T] into blocks [T, budget]; chosen [T].

    tops [rows, max_blocks / GROUP]: see `score_prompt`; overwritten. candidates int32 [rows, max_blocks] is memory to
    work in.
    """
    budget = blocks.shape[1]
    _select[(len(blocks),)](
        scores, tops, blocks, chosen, candidates, positions, scores.shape[1],
        BUDGET=budget, BUDGET_BLOCK=power_of_two(budget), RATIO=ratio, GROUP=GROUP, CHUNK=CHUNK,
        num_warps=4,
    )  # fmt: skip


def choose_blocks(
    q: torch.Tensor, memory: AttentionMemory, columns: Columns, blocks: torch.Tensor, chosen: torch.Tensor
) -> None:
    """Blocks int32 [T, budget] that the index queries q [T, heads, D] of a prompt's piece choose, and how many [T]."""
    tokens = len(q)
    width = -(-(columns.start + tokens) // memory.ratio // 16) * 16
    rows = max(16, min(tokens, SCORE_BYTES // (4 * width + 4 * width // GROUP)) // 16 * 16)
    scores = torch.empty(rows, width, device=q.device)
    tops = torch.empty(rows, width // GROUP, device=q.device)
    spare = torch.empty(rows, width, dtype=torch.int32, device=q.device)
    for start in range(0, tokens, rows):
        part = slice(start, min(start + rows, tokens))
        score_prompt(q[part], memory, columns.slot, columns.start + start, scores, tops)
        choose_prompt(scores, tops, spare, columns.positions[part], blocks[part], chosen[part], memory.ratio)
