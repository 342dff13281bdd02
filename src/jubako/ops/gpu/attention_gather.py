"""Attention of a prompt's tokens over the blocks they chose, gathered from the paged cache of eight bits.

A program is one warp and one token, for the heads of one key/value head. It decodes cells in the registers from which
the tensor cores read them. Of sixteen cells thread (j, g) of a product, j < 4 and g < 8, has
    keys     of cells g and g + 8: a fourth of a head's numbers, from D/4·j on;
    values   of cells 2j, 2j + 1, 2j + 8, 2j + 9: an eighth of them, from D/8·g on.
So numbers lie in another order in a product than in a head, the same one in both its factors. What a thread has of a
cell are whole words: nothing goes through shared memory, and nothing waits for another thread.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .cells import VALUE, held, signed_halves
from .columns import Columns
from .launch import power_of_two
from .state import PAGE, AttentionMemory
from .target import target

TILE = 16  # cells of a step


@triton.jit
def _joined(parts, COUNT: tl.constexpr):
    """1, 2 or 4 tensors as one; which of them are the last dimensions, in order."""
    if COUNT == 1:
        return parts[0]
    elif COUNT == 2:
        return tl.join(parts[0], parts[1])
    else:
        return tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))


@triton.jit
def _piece(
    codes, scales, row, at, scale, far_row, far_codes, far_scales, WIDE: tl.constexpr, D: tl.constexpr,
    SAME: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """WIDE words of rows `row` from word `at` on, which broadcast to [a, b], and their scale; SAME: it is `scale`."""
    place = row * (D // 4) + at
    if FAR:
        place = place.to(tl.int64) + tl.where(row >= far_row, far_codes // 4, 0)
    words = tl.load(codes.to(tl.pointer_type(tl.int32)) + place[:, :, None] + tl.arange(0, WIDE)[None, None, :])
    if not SAME:
        of = row * (D // 32) + at // 8
        if FAR:
            of = of.to(tl.int64) + tl.where(row >= far_row, far_scales, 0)
        scale = tl.load(scales + of)
    return words, scale


@triton.jit
def _halves(words, scale, factor, FORM: tl.constexpr):
    """Bytes of words [a, b, w] times scale [a, b] and factor: float16 [a, b, w, 2, 2]."""
    return _joined(signed_halves(words, held(scale * factor)[:, :, None], FORM), 4)


@triton.jit
def _fetch_keys(codes, scales, row, j, far_row, far_codes, far_scales, D: tl.constexpr, FAR: tl.constexpr):
    """Of cells in rows `row` [16], in pieces of up to sixteen bytes: ((words [4, 16, WIDE], scale [4, 16]), …)."""
    WIDE: tl.constexpr = min(4, D // 16)
    pieces = ()
    scale = row
    for p in tl.static_range(D // 16 // WIDE):
        at = (j * (D // 16) + p * WIDE)[:, None]
        found = _piece(
            codes, scales, row[None, :], at, scale, far_row, far_codes, far_scales, WIDE, D, p % 2 == 1, FAR
        )  # fmt: skip
        scale = found[1]
        pieces = pieces + (found,)
    return pieces


@triton.jit
def _keys(pieces, D: tl.constexpr, FORM: tl.constexpr):
    """float16 [D, 16] in the order of `number_of_key`."""
    WIDE: tl.constexpr = min(4, D // 16)
    COUNT: tl.constexpr = D // 16 // WIDE
    numbers = ()
    for p in tl.static_range(COUNT):
        numbers = numbers + (_halves(pieces[p][0], pieces[p][1], 1.0, FORM),)
    together = tl.reshape(_joined(numbers, COUNT), [4, 16, WIDE, 4, COUNT])
    return tl.trans(tl.reshape(tl.permute(together, (1, 4, 2, 0, 3)), [16, D]))


@triton.jit
def number_of_key(k, D: tl.constexpr):
    """Which of a head's numbers is number k of a product with keys: 16·word + 4·j + byte."""
    return ((k >> 2) & 3) * (D // 4) + (k >> 4) * 4 + (k & 3)


@triton.jit
def _fetch_values(codes, scales, row, g, far_row, far_codes, far_scales, D: tl.constexpr, FAR: tl.constexpr):
    """Of cells in rows row[c] [4]: for each of the four, in pieces of up to sixteen bytes, words [4, 8, WIDE] and
    scale [4, 8]."""
    WIDE: tl.constexpr = min(4, D // 32)
    pieces = ()
    scale = g
    for c in tl.static_range(4):
        for h in tl.static_range(D // 32 // WIDE):
            at = (g * (D // 32) + h * WIDE)[None, :]
            found = _piece(
                codes, scales, row[c][:, None], at, scale, far_row, far_codes, far_scales, WIDE, D, h % 2 == 1, FAR
            )  # fmt: skip
            scale = found[1]
            pieces = pieces + (found,)
    return pieces


@triton.jit
def _values(pieces, D: tl.constexpr, VALUE: tl.constexpr, FORM: tl.constexpr):
    """VALUE times the numbers: float16 [16, D], cells as j, c, numbers in the order of `number_of_value`."""
    WIDE: tl.constexpr = min(4, D // 32)
    COUNT: tl.constexpr = D // 32 // WIDE
    halves = ()
    for h in tl.static_range(COUNT):
        cells = ()
        for c in tl.static_range(4):
            cells = cells + (_halves(pieces[c * COUNT + h][0], pieces[c * COUNT + h][1], VALUE, FORM),)
        halves = halves + (_joined(cells, 4),)
    together = tl.reshape(_joined(halves, COUNT), [4, 8, WIDE, 4, 4, COUNT])
    return tl.reshape(tl.permute(together, (0, 4, 5, 2, 3, 1)), [16, D])


@triton.jit
def number_of_value(n, D: tl.constexpr):
    """Which of a head's numbers is number n of a product with values: 8·(its place in the eighth) + g."""
    return (n & 7) * (D // 8) + (n >> 3)


@triton.jit(do_not_specialize=["slot", "start"])
def _locate(
    blocks, chosen, rows, pages, page_stride, slot, start,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The cache's row of the first cell of each of a token's blocks, then of its tail, to rows [T, SIZE]."""
    t = tl.program_id(0)
    last = start + t
    i = tl.arange(0, SIZE)
    count = tl.load(chosen + t)
    block = tl.load(blocks + t * BUDGET + i, mask=i < count, other=0)
    cell = tl.where(i < count, block, tl.minimum((last + 1) // RATIO, last // RATIO)) * RATIO
    page = tl.load(pages + slot.to(tl.int64) * page_stride + cell // PAGE)
    tl.store(rows + t * SIZE + i, page * (KV_HEADS * 2 * PAGE) + cell % PAGE)


@triton.jit(do_not_specialize=["start"])
def _attend_chosen(
    q, gate, out, rows, chosen, codes, scales, start, scale, far_row, far_codes, far_scales,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, SIZE: tl.constexpr, VALUE: tl.constexpr, FORM: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """One token's chosen blocks and its tail, for the query heads of one key/value head."""
    t, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = start + tl.program_id(0)
    count = tl.load(chosen + t)
    tail = (position + 1) % RATIO  # its cells
    h = tl.arange(0, GROUP_ROWS)
    n = tl.arange(0, D)
    head = ((t * KV_HEADS + kv) * GROUP + tl.minimum(h, GROUP - 1))[:, None] * D
    queries = tl.load(q + head + number_of_key(n, D)[None, :]).to(tl.float32)
    queries = (queries * (scale * 1.4426950408889634)).to(tl.float16)
    top = tl.full([GROUP_ROWS], -1.0e30, tl.float32)
    weight = tl.zeros([GROUP_ROWS], tl.float32)
    mixed = tl.zeros([GROUP_ROWS, D], tl.float32)
    EACH: tl.constexpr = 16 // RATIO
    i = tl.arange(0, 16)
    j = tl.arange(0, 4)
    g = tl.arange(0, 8) * 3 // 3  # so that the compiler takes no neighbours' scales at once, in another order
    rows += t * SIZE
    codes += kv * 2 * PAGE * D
    scales += kv * 2 * PAGE * (D // 32)
    key_ahead = tl.load(rows + i // RATIO)
    ahead = ()
    for c in tl.static_range(4):
        ahead = ahead + (tl.load(rows + (2 * j + c // 2 * 8 + c % 2) // RATIO),)
    for first in tl.range(0, count + 1, EACH, num_stages=1):
        keys = _fetch_keys(codes, scales, key_ahead + i % RATIO, j, far_row, far_codes, far_scales, D, FAR)
        value_rows = ()
        for c in tl.static_range(4):
            value_rows = value_rows + (ahead[c] + PAGE + (2 * j + c // 2 * 8 + c % 2) % RATIO,)
        values = _fetch_values(codes, scales, value_rows, g, far_row, far_codes, far_scales, D, FAR)
        following = rows + tl.minimum(first + EACH, SIZE - EACH)
        key_ahead = tl.load(following + i // RATIO)
        ahead = ()
        for c in tl.static_range(4):
            ahead = ahead + (tl.load(following + (2 * j + c // 2 * 8 + c % 2) // RATIO),)
        block = first + i // RATIO
        wanted = (block < count) | ((block == count) & (i % RATIO < tail))
        score = tl.dot(queries, _keys(keys, D, FORM))
        score = tl.where(wanted[None, :], score, float("-inf"))
        highest = tl.max(score, 1)
        if tl.max(highest - top, 0) > 6.0:  # a share may be 64: what is mixed is seldom made smaller
            new = tl.maximum(top, highest)
            fade = tl.exp2(top - new)
            weight *= fade
            mixed *= fade[:, None]
            top = new
        share = tl.exp2(score - top[:, None])
        weight += tl.sum(share, 1)
        share = tl.permute(tl.reshape(share.to(tl.float16), [GROUP_ROWS, 2, 4, 2]), (0, 2, 1, 3))
        mixed = tl.dot(tl.reshape(share, [GROUP_ROWS, 16]), _values(values, D, VALUE, FORM), acc=mixed)
    place = head + number_of_value(n, D)[None, :]
    answer = mixed / (weight * VALUE)[:, None] * tl.sigmoid(tl.load(gate + place).to(tl.float32))
    tl.store(out + place, answer.to(tl.float16), mask=(h < GROUP)[:, None])


def attend_chosen(
    q: torch.Tensor, gate: torch.Tensor, out: torch.Tensor, memory: AttentionMemory, columns: Columns,
    blocks: torch.Tensor, chosen: torch.Tensor,
) -> None:  # fmt: skip
    """A prompt's queries [T, heads, D] over their `chosen` blocks and tails, gated: to out [T, heads*D]."""
    tokens, heads, dim = q.shape
    kv_heads, budget = memory.codes.shape[1], blocks.shape[1]
    group, size = heads // kv_heads, max(power_of_two(budget + 1), TILE // memory.ratio)
    rows = torch.empty(tokens, size, dtype=torch.int32, device=q.device)
    sizes = {"KV_HEADS": kv_heads, "PAGE": PAGE, "RATIO": memory.ratio, "SIZE": size}
    _locate[(tokens,)](
        blocks, chosen, rows, memory.cells, memory.cells.stride(0), columns.slot, columns.start, BUDGET=budget, **sizes
    )
    far = memory.reach(columns, budget * memory.ratio)
    _attend_chosen[(tokens, kv_heads)](
        q, gate, out, rows, chosen, memory.codes, memory.scales, columns.start, 1 / math.sqrt(dim),
        far.first, far.codes, far.scales, GROUP=group, GROUP_ROWS=max(16, power_of_two(group)), D=dim, VALUE=VALUE,
        FORM=target(q.device).one_column, FAR=memory.far is not None, num_warps=1, **sizes,
    )  # fmt: skip
