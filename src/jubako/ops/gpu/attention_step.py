"""Attention of a step's columns over a cache of eight bits, in products of halves.

What a program takes, and where it writes its run, is as in attention.py. Cells are fetched and decoded in pieces of
sixteen bytes, which share a scale.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .target import release, wait

TILE, WARPS = 64, 8  # cells at a time; fewer warps have more instructions each, whose fetching takes the time in place
PIECE = 16  # bytes
VALUE = 16.0  # values are that much larger than they are: small ones stay ordinary halves


@triton.jit
def rows_of_cells(
    blocks, pages, i, end, from_blocks, tail, kv, listed, known, ahead,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """Rows of the cache that hold the keys of a query's cells i, which lie below `end`.

    listed: `more_than`; where not, blocks follow each other. known: cells lie in pages `ahead`.
    """
    cell = tail + i - from_blocks
    if SPARSE:
        block = tl.load(blocks + i // RATIO, mask=(i < end) & (i < from_blocks) & listed, other=0)
        cell = tl.where(listed, tl.where(i < from_blocks, block * RATIO + i % RATIO, cell), i)
    page = tl.load(pages + cell // PAGE, mask=(i < end) & (known == 0), other=0)
    return (tl.where(known, ahead, page).to(tl.int64) * KV_HEADS + kv) * 2 * PAGE + cell % PAGE


@triton.jit
def more_than(position, RATIO: tl.constexpr, BUDGET: tl.constexpr, SPARSE: tl.constexpr):
    """Whether a token sees more blocks than are read, so that the chosen ones have to be looked up."""
    if SPARSE:
        return (position + 1) // RATIO > BUDGET
    else:
        return position < 0


@triton.jit
def run_of(
    t, split, chosen, position, listed, RATIO: tl.constexpr, SPARSE: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """(first cell of the run, its end, cells of all runs, those of them in blocks, the token behind the blocks).

    listed: `more_than`.
    """
    from_blocks = 0
    tail = 0
    if SPARSE:
        count = tl.load(chosen + t, mask=listed, other=-1)
        from_blocks = tl.where(count < 0, 0, count * RATIO)
        tail = tl.where(count < 0, 0, (position + 1) // RATIO * RATIO)
    total = from_blocks + position + 1 - tail
    run = tl.maximum(tl.cdiv(total, SPLITS), TILE)
    start = split * run
    return start, tl.minimum(start + run, total), total, from_blocks, tail


@triton.constexpr_function
def halves_asm() -> str:
    """Four signed bytes $2 to halves."""
    return (
        "{.reg .b32 x, a, b, c; xor.b32 x, $2, 0x80808080; mov.b32 c, 0x64806480;"
        "prmt.b32 a, x, 0x64646464, 0x4140; prmt.b32 b, x, 0x64646464, 0x4342;"
        "sub.rn.f16x2 $0, a, c; sub.rn.f16x2 $1, b, c;}"
    )


@triton.jit
def pieces(codes, scale, NUMBER: tl.constexpr, FORM: tl.constexpr):
    """Codes int8 [N, PIECE] times scale [N], which is held where 127 times it is the largest half."""
    if FORM == 1 or FORM == 4:
        numbers = tl.inline_asm_elementwise(halves_asm(), "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    else:
        numbers = codes.to(NUMBER)
    return numbers * tl.minimum(scale, 515.0).to(NUMBER)[:, None]


@triton.jit
def attend_bytes(
    q, sums, maxima, totals, blocks, chosen, slots, positions, pages, page_stride, codes, scales, scale,
    far_row, far_codes, far_scales,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr, SPARSE: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, PIECE: tl.constexpr, VALUE: tl.constexpr, NUMBER: tl.constexpr, FAR: tl.constexpr,
    EARLY: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One run of a token's cells for the query heads of a key/value head. NUMBER: what products take.

    Runs behind the last cell end at once, and leave their room to the launches behind. Pages are looked up before the
    wait where all of a token's cells are read. EARLY: see `Columns`.
    """
    release(OVERLAP)
    wait(OVERLAP and not EARLY)
    t, kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + t)
    if split * TILE <= position:
        EACH: tl.constexpr = D // PIECE
        n = tl.arange(0, TILE * EACH)
        pages += tl.load(slots + t) * page_stride
        blocks += t * BUDGET
        listed = more_than(position, RATIO, BUDGET, SPARSE)
        known = (position < SPLITS * TILE) & (listed == 0)  # a run is a tile then
        i = split * TILE + n // EACH
        ahead = tl.load(pages + i // PAGE, mask=(i <= position) & known, other=0)
        wait(OVERLAP and EARLY)
        start, end, total, from_blocks, tail = run_of(t, split, chosen, position, listed, RATIO, SPARSE, SPLITS, TILE)
        h = tl.arange(0, GROUP_ROWS)
        head = t * (GROUP * KV_HEADS) + kv * GROUP + h
        inside = (h < GROUP)[:, None]
        d = tl.arange(0, D)[None, :]
        top = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
        weight = tl.zeros([GROUP_ROWS], tl.float32)
        if start < total:
            byte = tl.arange(0, PIECE)[None, :]
            queries = tl.load(q + head[:, None] * D + d, mask=inside, other=0.0).to(NUMBER)
            mixed = tl.zeros([GROUP_ROWS, D], tl.float32)
            for first in tl.range(start, end, TILE, num_stages=1):
                i = first + n // EACH
                row = rows_of_cells(
                    blocks, pages, i, end, from_blocks, tail, kv, listed, known, ahead, KV_HEADS, PAGE, RATIO, SPARSE
                )
                at = row * D + n % EACH * PIECE
                of = row * GROUPS + n % EACH // (EACH // GROUPS)
                if FAR:
                    at += tl.where(row >= far_row, far_codes, 0)
                    of += tl.where(row >= far_row, far_scales, 0)
                there = (i < end)[:, None]
                key = tl.load(codes + at[:, None] + byte, mask=there, other=0)
                key_scale = tl.load(scales + of, mask=i < end, other=0.0)
                value = tl.load(codes + (at + PAGE * D)[:, None] + byte, mask=there, other=0)
                value_scale = tl.load(scales + of + PAGE * GROUPS, mask=i < end, other=0.0)
                keys = tl.reshape(pieces(key, key_scale, NUMBER, FORM), [TILE, D])
                score = tl.dot(queries, tl.trans(keys)) * scale
                score = tl.where((first + tl.arange(0, TILE) < end)[None, :], score, float("-inf"))
                highest = tl.maximum(top, tl.max(score, 1))
                share = tl.exp(score - highest[:, None])
                fade = tl.exp(top - highest)
                values = tl.reshape(pieces(value, value_scale * VALUE, NUMBER, FORM), [TILE, D])
                mixed = mixed * fade[:, None] + tl.dot(share.to(NUMBER), values)
                weight = weight * fade + tl.sum(share, 1)
                top = highest
            tl.store(sums + (head * SPLITS + split)[:, None] * D + d, mixed * (1.0 / VALUE), mask=inside)
        tl.store(maxima + head * SPLITS + split, top, mask=h < GROUP)
        tl.store(totals + head * SPLITS + split, weight, mask=h < GROUP)
