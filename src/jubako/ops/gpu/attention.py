"""Attention over chosen cells, read straight from the paged cache.

A program takes the query heads of one key/value head of one token, and one of `splits` runs of its cells; a second
launch merges the runs in order. How the cells are cut depends on the token's position alone. In a prompt there is one
run, and no second launch. A cell is the place of one token. Products are float32 here, for 16-bit caches and cards
without shorter ones; steps over 8-bit caches: attention_step.py.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .activation import Quantised, room_for, store_blocks
from .attention_prompt import attend_prompt
from .attention_step import PIECE, VALUE, attend_bytes, more_than, rows_of_cells, run_of
from .attention_step import TILE as STEP_TILE
from .attention_step import WARPS as STEP_WARPS
from .columns import Columns
from .launch import exact, overlapped, power_of_two
from .prompt import Halves
from .state import PAGE, AttentionMemory
from .target import interpreted, release, target, wait

SPLITS = 64  # runs of a step's columns, at most; those of fewer than TILE cells are left out
TILE, WARPS = 16, 4  # cells decoded at a time where products are float32
MERGED = 32  # elements of a head that one program, a warp, merges


@triton.jit
def _fetch(
    codes, scales, rows, live, far_row, far_codes, far_scales, D: tl.constexpr, GROUPS: tl.constexpr, FAR: tl.constexpr
):  # fmt: skip
    """Rows of the cache on their way: codes [TILE, GROUPS, D / GROUPS], scales [TILE, GROUPS]. FAR: see `homes.py`."""
    size: tl.constexpr = D // GROUPS
    g = tl.arange(0, GROUPS)
    place = rows[:, None, None] * D + g[None, :, None] * size + tl.arange(0, size)[None, None, :]
    at = rows[:, None] * GROUPS + g[None, :]
    if FAR:
        place += tl.where(rows >= far_row, far_codes, 0)[:, None, None]
        at += tl.where(rows >= far_row, far_scales, 0)[:, None]
    code = tl.load(codes + place, mask=live[:, None, None], other=0)
    return code, tl.load(scales + at, mask=live[:, None], other=0.0)


@triton.jit
def _decoded(code, scale, D: tl.constexpr, TILE: tl.constexpr):
    """What was fetched as numbers [TILE, D]."""
    return tl.reshape(code.to(tl.float32) * scale[:, :, None], [TILE, D])


@triton.jit
def _attend(
    q, gate, out, sums, maxima, totals, blocks, chosen, slots, positions, pages, page_stride, codes, scales, scale,
    far_row, far_codes, far_scales,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr, SPARSE: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, FAR: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One run of a token's cells for the query heads of a key/value head. A tile is fetched while one is worked on."""
    release(OVERLAP)
    wait(OVERLAP)
    t, kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + t)
    listed = more_than(position, RATIO, BUDGET, SPARSE)
    start, end, total, from_blocks, tail = run_of(t, split, chosen, position, listed, RATIO, SPARSE, SPLITS, TILE)
    pages += tl.load(slots + t) * page_stride
    blocks += t * BUDGET

    h = tl.arange(0, GROUP_ROWS)
    d = tl.arange(0, D)
    heads: tl.constexpr = GROUP * KV_HEADS
    place = (t * heads + kv * GROUP + h)[:, None] * D + d[None, :]
    inside = (h < GROUP)[:, None]
    queries = tl.load(q + place, mask=inside, other=0.0)
    top = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([GROUP_ROWS], tl.float32)
    mixed = tl.zeros([GROUP_ROWS, D], tl.float32)
    i = start + tl.arange(0, TILE)
    row = rows_of_cells(blocks, pages, i, end, from_blocks, tail, kv, listed, False, 0, KV_HEADS, PAGE, RATIO, SPARSE)
    key, key_scale = _fetch(codes, scales, row, i < end, far_row, far_codes, far_scales, D, GROUPS, FAR)
    value, value_scale = _fetch(codes, scales, row + PAGE, i < end, far_row, far_codes, far_scales, D, GROUPS, FAR)
    for _ in range(start, end, TILE):
        live = i < end
        i += TILE
        row = rows_of_cells(
            blocks, pages, i, end, from_blocks, tail, kv, listed, False, 0, KV_HEADS, PAGE, RATIO, SPARSE
        )
        keys = _decoded(key, key_scale, D, TILE)
        key, key_scale = _fetch(codes, scales, row, i < end, far_row, far_codes, far_scales, D, GROUPS, FAR)
        score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        score = tl.where(live[None, :], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        share = tl.exp(score - highest[:, None])
        fade = tl.exp(top - highest)
        values = _decoded(value, value_scale, D, TILE)
        value, value_scale = _fetch(codes, scales, row + PAGE, i < end, far_row, far_codes, far_scales, D, GROUPS, FAR)
        mixed = mixed * fade[:, None] + tl.dot(share, values, input_precision=PRECISION)
        weight = weight * fade + tl.sum(share, 1)
        top = highest
    if SPLITS == 1:
        open = tl.sigmoid(tl.load(gate + place, mask=inside, other=0.0))
        tl.store(out + place, mixed / weight[:, None] * open, mask=inside)
    else:
        piece = (t * heads + kv * GROUP + h) * SPLITS + split
        if start < total:  # the others are not read
            tl.store(sums + piece[:, None] * D + d[None, :], mixed, mask=inside)
        tl.store(maxima + piece, top, mask=h < GROUP)
        tl.store(totals + piece, weight, mask=h < GROUP)


@triton.jit
def _merge(
    sums, maxima, totals, gate, positions, out_q, out_d, out_s, out_x, out_blocks,
    HEADS: tl.constexpr, D: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr,
    QUANTISED: tl.constexpr, EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """PART elements of one head of one token: its runs, gated. Runs have LEAST cells, the last fewer; of those that may
    have cells, runs without have a maximum of -inf. EARLY: see `Columns`."""
    release(OVERLAP)
    wait(OVERLAP and not EARLY)
    head = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLITS)
    d = tl.program_id(1) * PART + tl.arange(0, PART)
    there = s * LEAST <= tl.load(positions + head // HEADS)
    wait(OVERLAP and EARLY)
    maximum = tl.load(maxima + head * SPLITS + s, mask=there, other=float("-inf"))
    weight = tl.load(totals + head * SPLITS + s, mask=there, other=0.0)
    piece = (head * SPLITS + s)[:, None] * D + d[None, :]
    value = tl.load(sums + piece, mask=there[:, None], other=0.0)
    open = tl.sigmoid(tl.load(gate + head * D + d))
    share = tl.exp(maximum - tl.max(maximum, 0))
    total = tl.sum(share * weight, 0)
    mixed = tl.sum(tl.where((maximum > float("-inf"))[:, None], share[:, None] * value, 0.0), 0)
    if QUANTISED:
        answer = tl.reshape(mixed / total * open, [PART // 32, 32])
        first = head % HEADS * (D // 32) + tl.program_id(1) * (PART // 32)
        store_blocks(answer, head // HEADS, first, out_blocks, out_q, out_d, out_s, out_x, PART // 32, True)
    else:
        tl.store(out_x + head * D + d, mixed / total * open)


def sparse_attention(
    q: torch.Tensor, gate: torch.Tensor, memory: AttentionMemory, columns: Columns,
    blocks: torch.Tensor | None, chosen: torch.Tensor | None,
) -> torch.Tensor | Quantised | Halves:  # fmt: skip
    """Attention of queries [T, heads, D] over their chosen blocks and tails, gated: [T, heads*D].

    A step's is quantised where blocks fit heads. blocks None, or a count below 0, means every past token.
    """
    if columns.parts is None and memory.codes.dtype == torch.int8:
        return attend_prompt(q, gate, memory, columns, blocks, chosen)
    tokens, heads, dim = q.shape
    kv_heads = memory.codes.shape[1]
    group = heads // kv_heads
    step = columns.parts is not None
    splits = SPLITS if step else 1
    quantised = step and dim % 32 == 0
    out = torch.empty(0 if quantised else tokens, heads * dim, dtype=torch.float32, device=q.device)
    pieces = tokens * heads * splits if step else 0
    sums = torch.empty(pieces, dim, dtype=torch.float32, device=q.device)
    maxima, totals = (torch.empty(pieces, dtype=torch.float32, device=q.device) for _ in range(2))
    far = memory.reach(columns, columns.start + tokens if blocks is None else blocks.shape[1] * memory.ratio)
    where = (
        blocks if blocks is not None else columns.slots, chosen if chosen is not None else columns.slots,
        columns.slots, columns.positions, memory.cells, memory.cells.stride(0), memory.codes, memory.scales,
        1 / math.sqrt(dim), far.first, far.codes, far.scales,
    )  # fmt: skip
    to = target(q.device)
    sizes = {
        "GROUP": group, "GROUP_ROWS": max(16, power_of_two(group)), "KV_HEADS": kv_heads, "D": dim,
        "GROUPS": memory.scales.shape[-1], "PAGE": PAGE, "RATIO": max(memory.ratio, 1),
        "BUDGET": blocks.shape[1] if blocks is not None else 1, "SPARSE": blocks is not None, "SPLITS": splits,
        "FAR": memory.far is not None, "OVERLAP": to.overlap, **overlapped(q.device),
    }  # fmt: skip
    bytewise = step and memory.codes.dtype == torch.int8 and to.dot
    if bytewise:
        two = {"maxnreg": 128} if to.overlap else {}  # programs on a multiprocessor, for several columns' runs
        attend_bytes[(tokens, kv_heads, splits)](
            q, sums, maxima, totals, *where, TILE=STEP_TILE, PIECE=min(PIECE, dim // memory.scales.shape[-1]),
            VALUE=VALUE, NUMBER=tl.float32 if interpreted() else tl.float16, EARLY=columns.early, FORM=to.one_column,
            num_warps=STEP_WARPS, **two, **sizes,
        )  # fmt: skip
    else:
        _attend[(tokens, kv_heads, splits)](
            q, gate, out, sums, maxima, totals, *where, TILE=TILE, PRECISION=exact(q.device), num_warps=WARPS, **sizes
        )
    if not step:
        return out
    room = room_for(tokens, heads * dim, True, q.device) if quantised else None
    places = (room.q, room.d, room.s, room.x, room.blocks) if room else (out, out, out, out, 0)
    part = min(MERGED, dim)
    _merge[(tokens * heads, dim // part)](
        sums, maxima, totals, gate, columns.positions, *places, HEADS=heads, D=dim, PART=part, SPLITS=splits,
        LEAST=STEP_TILE if bytewise else TILE, QUANTISED=quantised, EARLY=columns.early,
        OVERLAP=target(q.device).overlap, num_warps=1, **overlapped(q.device),
    )  # fmt: skip
    return room or out
