"""What a token's experts give together, in one launch: the down products of all its uses, weighted and added by rank.

The bits are those of `expert_step.down` and `experts.weighted_sum`. A program makes some rows for all uses of a token.
Lanes are [UNIT, rows]. Rows are short: half of a last unit of eight blocks may lie beyond their end. Where they are
made of units of four, lane (j, row) has the partial sums j and j + 4.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .activation import Quantised
from .away import ANSWERED, ASKED, DONE, ERROR, await_rows, latest
from .expert_rows import keep_order
from .integer import fma
from .kinds import number_bytes
from .mathfun import sigmoid
from .peer_word import SITES, Outbox, exchange_number, word_of
from .planar import LAYOUTS
from .single import fetch_single, met, single_columns, single_tree
from .slots import Slots
from .target import interpreted, release, target, wait

if TYPE_CHECKING:
    from .experts import Experts, Routed

WORDS = 70  # 32-bit words of weights that a lane has on their way, at most


@triton.jit
def fetch_use(
    base, slot_bytes, slot, hidden, blocks, top, UNITS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `top` on of the expert in a slot (of any, if it has none), on their way."""
    slot = tl.maximum(slot, 0)
    return fetch_single(base + slot.to(tl.int64) * slot_bytes, hidden, blocks, top, 0, UNITS, ROWS, 1, TYPE, EVEN, UNIT)


@triton.jit
def use_rows(raws, units, seed, ROWS: tl.constexpr, UNIT: tl.constexpr, TYPE: tl.constexpr, FORM: tl.constexpr):
    """These rows times a use's hidden values: float32 [ROWS]."""
    first = tl.zeros([UNIT, ROWS, 1], tl.float32)
    second = first
    for u in tl.static_range(len(units)):
        if UNIT == 4 and u % 2 == 1:
            second = met(second, raws[0][u], units[u], seed, TYPE, FORM)
        else:
            first = met(first, raws[0][u], units[u], seed, TYPE, FORM)
    if UNIT == 8:
        return single_tree(first, ROWS)
    else:
        x = tl.reshape(tl.sum(first + second, axis=2), [2, 2, ROWS])  # P0 + P4, P1 + P5, …
        return tl.sum(tl.sum(x, axis=0), axis=0) + 0.0


@triton.jit(do_not_specialize=["site"])
def sum_down_kernel(
    pool, pool_scales, slot_bytes, slots, blocks, shared, shared_scales, shared_blocks,
    hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid, shared_valid, weights, share, out, hidden,
    box, passes, site, most, words, notes, rows, patience,
    UNITS: tl.constexpr, SHARED_UNITS: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr, CHOSEN: tl.constexpr,
    DOWN: tl.constexpr, SHARED_DOWN: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, UNIT: tl.constexpr,
    SCALED: tl.constexpr, SHARED_SCALED: tl.constexpr, SITES: tl.constexpr, ORDERED: tl.constexpr, AWAY: tl.constexpr,
    DONE: tl.constexpr, ERROR: tl.constexpr, ANSWERED: tl.constexpr, ASKED: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, t): ROWS rows of token t's sum into out [T, hidden]. pool, shared: their first down matrices.

    Absent experts add nothing, but for those that the CPU was asked for (AWAY): their rows are waited for when all else
    is done. Weights of AHEAD routed uses are on their way at once, and so are the next use's hidden values. Slots and
    weights are those that `gate_up_kernel` has waited for, so they need not wait for its end; past the first level
    cache, which may hold an older layer's, or what lay in a slot before (`away.latest`). SITES: what is written goes to
    another card, too (`peer_word.Outbox`).
    """
    release(OVERLAP)
    top = tl.program_id(0) * ROWS
    token = tl.program_id(1)
    number = 0
    if SITES > 0:
        number = exchange_number(passes, site, SITES)
    request = 0
    if AWAY:
        request = latest(notes)
    last = fetch_use(
        shared, 0, token * 0, hidden, shared_blocks, top, SHARED_UNITS, ROWS, SHARED_DOWN, SHARED_EVEN, UNIT
    )
    found = ()
    for rank in tl.static_range(CHOSEN):
        found = found + (tl.load(slots + token * CHOSEN + rank, volatile=True),)
    raws = ()
    for rank in tl.static_range(AHEAD):
        raws = raws + (fetch_use(pool, slot_bytes, found[rank], hidden, blocks, top, UNITS, ROWS, DOWN, EVEN, UNIT),)
    shares = ()
    for rank in tl.static_range(CHOSEN):
        shares = shares + (tl.load(weights + token * CHOSEN + rank, volatile=True),)
    own = tl.load(share + token + tl.arange(0, 1), volatile=True)
    wait(OVERLAP)
    seed = token + tl.arange(0, UNIT)[:, None, None] + tl.zeros([1, ROWS, 1], tl.int32)
    x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid)
    total = tl.zeros([ROWS], tl.float32)
    outputs = ()
    units = single_columns(x, token * CHOSEN, 0, UNITS, ROWS, DOWN, EVEN, UNIT)
    for rank in tl.static_range(CHOSEN):
        use = token * CHOSEN + rank
        if rank + AHEAD < CHOSEN:
            slot = found[rank + AHEAD]
            raws = raws + (fetch_use(pool, slot_bytes, slot, hidden, blocks, top, UNITS, ROWS, DOWN, EVEN, UNIT),)
        if rank + 1 < CHOSEN:
            following = single_columns(x, use + 1, 0, UNITS, ROWS, DOWN, EVEN, UNIT)
        else:
            x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, shared_valid)
            use = tl.num_programs(1) * CHOSEN + token
            following = single_columns(x, use, 0, SHARED_UNITS, ROWS, SHARED_DOWN, SHARED_EVEN, UNIT)
        if ORDERED:
            keep_order(FORM)
        y = use_rows(raws[rank], units, seed, ROWS, UNIT, DOWN, FORM)
        units = following
        if SCALED:
            y *= tl.load(pool_scales + tl.maximum(found[rank], 0) * 3 + 2)
        y = tl.where(found[rank] >= 0, y, 0.0)
        if AWAY:
            outputs = outputs + (y,)
        else:
            total = fma(shares[rank] + total * 0.0, y, total, FORM)
    y = use_rows(last, units, seed, ROWS, UNIT, SHARED_DOWN, FORM)
    if SHARED_SCALED:
        y *= tl.load(shared_scales + 2)
    row = top + tl.arange(0, ROWS)
    if AWAY:
        await_rows(request, words, notes, tl.program_id(0) + token == 0, patience, DONE, ERROR, ANSWERED, FORM)
        for rank in tl.static_range(CHOSEN):
            asked = found[rank] == ASKED
            place = rows + (token * CHOSEN + rank) * hidden + row
            theirs = tl.load(place, mask=asked & (row < hidden), other=0.0)
            total = fma(shares[rank] + total * 0.0, tl.where(asked, theirs, outputs[rank]), total, FORM)
    gate = tl.sum(sigmoid(own, FORM), axis=0)  # once, not for each element
    total = fma(gate + total * 0.0, y, total, FORM)
    at = token * hidden + row
    if SITES > 0:
        tl.store(box + (site % 2) * most + at, word_of(total, number), mask=row < hidden)
    tl.store(out + at, total, mask=row < hidden)


def adds_up(layer: Experts) -> bool:
    """Whether this launch is for a layer's types: of plain numbers a lane would have too many on their way."""
    return not any(number_bytes(slots.shape.down.id) for slots in (layer.routed, layer.shared))


@dataclass(frozen=True)
class Cut:
    """rows: of a program; ahead: routed uses whose weights are on their way at once, at most; quads: whether units of
    four blocks are taken where rows are made of them; ordered: loads are issued where they are written."""

    rows: int = 16
    ahead: int = 5
    quads: bool = False
    ordered: bool = True


def sum_down(
    layer: Experts, hidden: Quantised, routed: Routed, outbox: Outbox | None = None, cut: Cut | None = None
) -> torch.Tensor:
    """The weighted sum [T, H] of all uses' outputs, from their hidden values; outbox: of another card, gets it, too."""
    shape, mine, shared, to = layer.routed.shape, layer.routed, layer.shared, target(hidden.d.device)
    tokens, chosen = routed.ids.shape
    asked = None if layer.away is None else layer.away.mailbox
    wide = tokens == 1 or asked is not None  # the CPU's rows are read over the bus
    cut = cut or (Cut(rows=256, ahead=1) if interpreted() else Cut() if wide else Cut(rows=8))
    blocks, shared_blocks = -(-shape.down_cols // 32), -(-shared.shape.down_cols // 32)
    valid, shared_valid = -(-shape.size // 32), -(-shared.shape.size // 32)
    whole, shared_whole = (0 if there < n else n for n, there in ((blocks, valid), (shared_blocks, shared_valid)))
    unit = 4 if cut.quads and whole and shared_whole and (whole | shared_whole) % 4 == 0 else 8
    units = -(-blocks // unit)
    words = -(-units * LAYOUTS[shape.down.name].row_bytes(32 * unit) // (4 * unit))
    out = torch.empty(tokens, shape.hidden, device=hidden.d.device)
    sum_down_kernel[(-(-shape.hidden // cut.rows), tokens)](
        mine.data[0, shape.down_at :], scales_of(mine), shape.bytes, routed.slots_in(mine.table), blocks,
        shared.data[0, shared.shape.down_at :], scales_of(shared), shared_blocks,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks, valid, shared_valid,
        routed.weights, routed.share, out, shape.hidden,
        *((out, out, 0, 0) if outbox is None else (outbox.box, outbox.passes, outbox.site, outbox.most)),
        *((out, out, out, 0) if asked is None else (asked.words, asked.state, asked.rows, asked.patience)),
        UNITS=units, SHARED_UNITS=-(-shared_blocks // unit), ROWS=cut.rows,
        AHEAD=max(1, min(cut.ahead, chosen, WORDS // words)), CHOSEN=chosen, DOWN=shape.down.id,
        SHARED_DOWN=shared.shape.down.id, EVEN=whole > 0 and whole % unit == 0,
        SHARED_EVEN=shared_whole > 0 and shared_whole % unit == 0, UNIT=unit,
        SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None, SITES=0 if outbox is None else SITES,
        ORDERED=cut.ordered, AWAY=asked is not None, DONE=DONE, ERROR=ERROR, ANSWERED=ANSWERED, ASKED=ASKED,
        FORM=to.one_column, OVERLAP=to.overlap, num_warps=max(1, cut.rows * unit // 32),
        **to.options,
    )  # fmt: skip
    return out


def scales_of(slots: Slots) -> torch.Tensor:
    """Factors of the products, or something in their place."""
    return slots.scales if slots.scales is not None else slots.table
