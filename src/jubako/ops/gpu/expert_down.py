"""What a token's experts give together, in one launch: the down products of all its uses, weighted and added by rank.

The bits are those of `expert_step.down` and `experts.weighted_sum`. A program makes some rows for all uses of a token.
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
from .integer import fma
from .kinds import number_bytes
from .mathfun import sigmoid
from .peer_word import SITES, Outbox, exchange_number, word_of
from .planar import LAYOUTS
from .single import fetch_single, meet_single, no_sums, single_columns, single_tree
from .slots import Slots
from .target import interpreted, release, target, wait

if TYPE_CHECKING:
    from .experts import Experts, Routed

WORDS = 64  # 32-bit words of weights that a lane has on their way, at most


@triton.jit
def fetch_use(
    base, slot_bytes, slot, hidden, blocks, top, UNITS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `top` on of the expert in a slot (of any, if it has none), on their way."""
    slot = tl.maximum(slot, 0)
    return fetch_single(base + slot.to(tl.int64) * slot_bytes, hidden, blocks, top, 0, UNITS, ROWS, 1, TYPE, EVEN)


@triton.jit
def use_rows(
    raws, x, use, UNITS: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr
):
    """These rows times a use's hidden values: float32 [ROWS]."""
    units = single_columns(x, use, 0, UNITS, ROWS, TYPE, EVEN)
    return single_tree(meet_single(no_sums(1, ROWS, TYPE), raws, units, use, TYPE, FORM)[0], ROWS)


@triton.jit(do_not_specialize=["site"])
def sum_down_kernel(
    pool, pool_scales, slot_bytes, slots, blocks, shared, shared_scales, shared_blocks,
    hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid, shared_valid, weights, share, out, hidden,
    box, passes, site, most, words, notes, rows, patience,
    UNITS: tl.constexpr, SHARED_UNITS: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr, CHOSEN: tl.constexpr,
    DOWN: tl.constexpr, SHARED_DOWN: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, SCALED: tl.constexpr,
    SHARED_SCALED: tl.constexpr, SITES: tl.constexpr, AWAY: tl.constexpr,
    DONE: tl.constexpr, ERROR: tl.constexpr, ANSWERED: tl.constexpr, ASKED: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, t): ROWS rows of token t's sum into out [T, hidden]. pool, shared: their first down matrices.

    Absent experts add nothing, but for those that the CPU was asked for (AWAY): their rows are waited for when all else
    is done. Weights of AHEAD routed uses are on their way at once; slots and weights are those that `gate_up_kernel`
    has waited for, so they need not wait for its end; past the first level cache, which may hold an older layer's
    slots, or what lay in a slot before (`away.latest`). SITES: what is written goes to another card, too
    (`peer_word.Outbox`).
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
    last = fetch_use(shared, 0, token * 0, hidden, shared_blocks, top, SHARED_UNITS, ROWS, SHARED_DOWN, SHARED_EVEN)
    raws = ()
    for rank in tl.static_range(AHEAD):
        slot = tl.load(slots + token * CHOSEN + rank, volatile=True)
        raws = raws + (fetch_use(pool, slot_bytes, slot, hidden, blocks, top, UNITS, ROWS, DOWN, EVEN),)
    wait(OVERLAP)
    x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, valid)
    total = tl.zeros([ROWS], tl.float32)
    found = ()
    outputs = ()
    for rank in tl.static_range(CHOSEN):
        use = token * CHOSEN + rank
        if rank + AHEAD < CHOSEN:
            slot = tl.load(slots + use + AHEAD, volatile=True)
            raws = raws + (fetch_use(pool, slot_bytes, slot, hidden, blocks, top, UNITS, ROWS, DOWN, EVEN),)
        slot = tl.load(slots + use, volatile=AWAY)
        y = use_rows(raws[rank], x, use, UNITS, ROWS, DOWN, EVEN, FORM)
        if SCALED:
            y *= tl.load(pool_scales + tl.maximum(slot, 0) * 3 + 2)
        y = tl.where(slot >= 0, y, 0.0)
        if AWAY:
            found = found + (slot,)
            outputs = outputs + (y,)
        else:
            total = fma(tl.load(weights + use) + total * 0.0, y, total, FORM)
    use = tl.num_programs(1) * CHOSEN + token
    x = (hidden_q, hidden_d, hidden_s, hidden_x, hidden_blocks, shared_valid)
    y = use_rows(last, x, use, SHARED_UNITS, ROWS, SHARED_DOWN, SHARED_EVEN, FORM)
    if SHARED_SCALED:
        y *= tl.load(shared_scales + 2)
    row = top + tl.arange(0, ROWS)
    if AWAY:
        await_rows(request, words, notes, tl.program_id(0) + token == 0, patience, DONE, ERROR, ANSWERED, FORM)
        for rank in tl.static_range(CHOSEN):
            asked = found[rank] == ASKED
            place = rows + (token * CHOSEN + rank) * hidden + row
            theirs = tl.load(place, mask=asked & (row < hidden), other=0.0)
            share_of = tl.load(weights + token * CHOSEN + rank) + total * 0.0
            total = fma(share_of, tl.where(asked, theirs, outputs[rank]), total, FORM)
    gate = tl.sum(sigmoid(tl.load(share + token + tl.arange(0, 1)), FORM), axis=0)  # once, not for each element
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
    """rows: of a program; ahead: routed uses whose weights are on their way at once, at most."""

    rows: int = 16
    ahead: int = 5


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
    units = -(-blocks // 8)
    words = units * max(1, LAYOUTS[shape.down.name].row_bytes(256) // 32)
    out = torch.empty(tokens, shape.hidden, device=hidden.d.device)
    sum_down_kernel[(-(-shape.hidden // cut.rows), tokens)](
        mine.data[0, shape.down_at :], scales_of(mine), shape.bytes, routed.slots_in(mine.table), blocks,
        shared.data[0, shared.shape.down_at :], scales_of(shared), shared_blocks,
        hidden.q, hidden.d, hidden.s, hidden.x, hidden.blocks, valid, shared_valid,
        routed.weights, routed.share, out, shape.hidden,
        *((out, out, 0, 0) if outbox is None else (outbox.box, outbox.passes, outbox.site, outbox.most)),
        *((out, out, out, 0) if asked is None else (asked.words, asked.state, asked.rows, asked.patience)),
        UNITS=units, SHARED_UNITS=-(-shared_blocks // 8), ROWS=cut.rows,
        AHEAD=max(1, min(cut.ahead, chosen, WORDS // words)), CHOSEN=chosen, DOWN=shape.down.id,
        SHARED_DOWN=shared.shape.down.id, EVEN=blocks % 8 == 0 and valid >= blocks,
        SHARED_EVEN=shared_blocks % 8 == 0 and shared_valid >= shared_blocks,
        SCALED=mine.scales is not None, SHARED_SCALED=shared.scales is not None, SITES=0 if outbox is None else SITES,
        AWAY=asked is not None, DONE=DONE, ERROR=ERROR, ANSWERED=ANSWERED, ASKED=ASKED,
        FORM=to.one_column, OVERLAP=to.overlap, num_warps=max(1, cut.rows // 4),
        **to.options,
    )  # fmt: skip
    return out


def scales_of(slots: Slots) -> torch.Tensor:
    """Factors of the products, or something in their place."""
    return slots.scales if slots.scales is not None else slots.table
