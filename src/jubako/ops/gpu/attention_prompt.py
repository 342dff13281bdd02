"""Attention of a prompt's tokens, read straight from the paged cache of eight bits.

Early in a context a tile of queries meets all cells up to its last one, and what a query did not choose is masked: the
cells are decoded once for many heads. Later each token gathers its own blocks. Keys and values become halves; values
VALUE times as large as they are, held at 4,000.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .attention_gather import attend_chosen
from .cells import VALUE, held, page_number, signed_halves
from .columns import Columns
from .launch import power_of_two
from .prompt import Halves
from .state import PAGE, AttentionMemory
from .target import target


@triton.jit
def _fetch(
    codes, scales, row, far_row, far_codes, far_scales, D: tl.constexpr, GROUPS: tl.constexpr, FAR: tl.constexpr
):  # fmt: skip
    """Rows `row` [N] of the cache on their way: words of four codes [N, GROUPS, D/4/GROUPS], scales [N, GROUPS].

    FAR: see `homes.py`.
    """
    words: tl.constexpr = D // GROUPS // 4
    g = tl.arange(0, GROUPS)
    place = row[:, None, None] * (D // 4) + g[None, :, None] * words + tl.arange(0, words)[None, None, :]
    at = row[:, None] * GROUPS + g[None, :]
    if FAR:
        place = place.to(tl.int64) + tl.where(row >= far_row, far_codes // 4, 0)[:, None, None]
        at = at.to(tl.int64) + tl.where(row >= far_row, far_scales, 0)[:, None]
    word = tl.load(codes.to(tl.pointer_type(tl.int32)) + place)
    return word, tl.load(scales + at)


@triton.jit
def _numbers(fetched, factor, D: tl.constexpr, N: tl.constexpr, FORM: tl.constexpr):
    """What was fetched times factor, as float16 [N, D]."""
    word, scale = fetched
    value = signed_halves(word, held(scale * factor)[:, :, None], FORM)
    return tl.reshape(tl.join(tl.join(value[0], value[2]), tl.join(value[1], value[3])), [N, D])


@triton.jit
def _weighed(score, wanted, top, weight, mixed):
    """A softmax's step over scores in powers of two: shares of this tile, new maxima, sums, and what to keep."""
    score = tl.where(wanted, score, float("-inf"))
    highest = tl.maximum(top, tl.max(score, 1))
    share = tl.exp2(score - highest[:, None])
    fade = tl.exp2(top - highest)
    return share, highest, weight * fade + tl.sum(share, 1), mixed * fade[:, None]


@triton.jit
def _mark(blocks, marks, start, stride, RATIO: tl.constexpr, BUDGET: tl.constexpr, SIZE: tl.constexpr):
    """A bit for each block that a token reads, its tail's among them; marks [T, stride] are zeros before."""
    t = tl.program_id(0)
    complete = (start + t + 1) // RATIO
    i = tl.arange(0, SIZE)
    if complete > BUDGET:
        block = tl.load(blocks + t * BUDGET + i, mask=i < BUDGET, other=0)
        block = tl.where(i < BUDGET, block, complete)
        tl.atomic_or(marks + t * stride + block // 32, 1 << (block % 32), mask=i <= BUDGET, sem="relaxed")
    else:
        word = tl.arange(0, SIZE // 2)
        tl.store(marks + t * stride + word, tl.full([SIZE // 2], -1, tl.int32), mask=word < stride)


@triton.jit(do_not_specialize=["mark_stride", "slot", "start", "tokens"])
def _attend_all(
    q, gate, out, marks, mark_stride, pages, page_stride, codes, scales, slot, start, tokens, scale,
    far_row, far_codes, far_scales,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, MARKED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, VALUE: tl.constexpr,
    STAGES: tl.constexpr, FORM: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """A tile of queries, all heads of one key/value head of each, over all cells up to the last query's."""
    kv = tl.program_id(0)
    QUERIES: tl.constexpr = ROWS // GROUP
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES  # the longest begin
    row = tl.arange(0, ROWS)
    t = tl.minimum(first + row // GROUP, tokens - 1)
    live = (row < QUERIES * GROUP) & (first + row // GROUP < tokens)
    position = start + t
    d = tl.arange(0, D)
    head = (t * KV_HEADS + kv) * GROUP + row % GROUP
    place = head[:, None] * D + d[None, :]
    queries = (tl.load(q + place).to(tl.float32) * (scale * 1.4426950408889634)).to(tl.float16)
    top = tl.full([ROWS], -1.0e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D], tl.float32)
    pages += slot.to(tl.int64) * page_stride
    cell = tl.arange(0, TILE)
    end = start + tl.minimum(first + QUERIES, tokens)
    for cells in tl.range(0, end, TILE, num_stages=STAGES):
        page = page_number(pages + cells // PAGE)
        base = (page * KV_HEADS + kv) * 2 * PAGE + cells % PAGE
        key = _fetch(codes, scales, base + cell, far_row, far_codes, far_scales, D, GROUPS, FAR)
        keys = _numbers(key, 1.0, D, TILE, FORM)
        score = tl.dot(queries, tl.trans(keys))
        wanted = (cells + cell)[None, :] <= position[:, None]
        if MARKED:
            word = tl.load(marks + t * mark_stride + cells // (32 * RATIO))
            wanted &= ((word[:, None] >> ((cells + cell) // RATIO % 32)[None, :]) & 1) != 0
        share, top, weight, mixed = _weighed(score, wanted, top, weight, mixed)
        value = _fetch(codes, scales, base + PAGE + cell, far_row, far_codes, far_scales, D, GROUPS, FAR)
        values = _numbers(value, VALUE, D, TILE, FORM)
        mixed = tl.dot(share.to(tl.float16), values, acc=mixed)
    answer = mixed / (weight * VALUE)[:, None] * tl.sigmoid(tl.load(gate + place).to(tl.float32))
    tl.store(out + place, answer.to(tl.float16), mask=live[:, None])


@dataclass(frozen=True)
class Cut:
    """Rows of a tile of queries and cells of a step while all cells are read."""

    rows: int = 128
    tile: int = 64
    warps: int = 8
    stages: int = 3


SMALL = Cut(32, 32, 4, 1)  # where a program has 64 KB of shared memory or little more
DENSE = 4096  # cells up to which all are read


def attend_prompt(
    q: torch.Tensor, gate: torch.Tensor, memory: AttentionMemory, columns: Columns, blocks: torch.Tensor | None,
    chosen: torch.Tensor | None, cut: Cut | None = None,
) -> Halves:  # fmt: skip
    """Attention of a prompt's queries [T, heads, D] over chosen blocks and tails, gated: [T, heads*D].

    blocks None: over every past token.
    """
    tokens, heads, dim = q.shape
    kv_heads = memory.codes.shape[1]
    group, to = heads // kv_heads, target(q.device)
    cut = cut or (Cut() if to.stages > 1 else SMALL)
    out = torch.empty(tokens, heads * dim, dtype=torch.float16, device=q.device)
    end, ratio = columns.start + tokens, max(memory.ratio, 1)
    if blocks is not None and end > DENSE:
        assert chosen is not None
        attend_chosen(q, gate, out, memory, columns, blocks, chosen)
        return Halves(out)
    marks, stride = memory.cells, 0  # of marks where there are none only the type counts
    if blocks is not None and end // ratio > blocks.shape[1]:
        stride = -(-(end // ratio + 1) // 32)
        marks = torch.zeros(tokens, stride, dtype=torch.int32, device=q.device)
        size = max(power_of_two(blocks.shape[1] + 1), 2 * power_of_two(stride))
        _mark[(tokens,)](
            blocks, marks, columns.start, stride, RATIO=ratio, BUDGET=blocks.shape[1], SIZE=size,
        )  # fmt: skip
    height = max(cut.rows, power_of_two(group))
    far = memory.reach(columns, end)
    _attend_all[(kv_heads, -(-tokens // (height // group)))](
        q, gate, out, marks, stride, memory.cells, memory.cells.stride(0), memory.codes, memory.scales, columns.slot,
        columns.start, tokens, 1 / math.sqrt(dim), far.first, far.codes, far.scales,
        GROUP=group, KV_HEADS=kv_heads, D=dim, GROUPS=memory.scales.shape[-1], PAGE=PAGE, RATIO=ratio,
        MARKED=stride > 0, ROWS=height, TILE=cut.tile, VALUE=VALUE, STAGES=cut.stages, FORM=to.one_column,
        FAR=memory.far is not None, num_warps=cut.warps,
    )  # fmt: skip
    return Halves(out)
