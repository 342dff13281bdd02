"""`Exchange`: two cards add up what each has of a block's output, and both get the same sum.

A step's columns: numbers cross the link as words (`peer_word`), a product's from the launch that makes it. Two inboxes
in turn: who sends into one again has received what the other card sent after it had read it. A prompt's tokens are
copied.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from .activation import room_for, store_blocks
from .combine import Pending, Wide, hyper_combine
from .experts import Parts, add_up, weighted_sum
from .hyper import HyperMix, hyper_mix, mix_step
from .hyper_prompt import PromptParts
from .integer import fma
from .launch import COLUMNS
from .linear import Input, in_tiles, launch, linear, quantised
from .matrix import Matrix
from .peer import Passage
from .peer_word import SITES, Outbox, exchange_number, word_of
from .target import release, target, wait

PIECE, COUNT, WARPS = 256, 8, 2  # numbers of a program, or blocks of 32, and its warps
PATIENCE = 1 << 22  # looks into the inbox before a card gives up: seconds
OnCard = Callable[[], AbstractContextManager[Any]]


@triton.jit
def exchanged(
    own, weights, share, inbox, outbox, number, site, most, token, tokens, hidden, h, sends,
    CHOSEN: tl.constexpr, SENT: tl.constexpr, PATIENCE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Elements h of a token's part here, own [T, hidden] or experts' parts if CHOSEN, plus the other card's.

    inbox, outbox int64 [2, most]: here, and the other card's, into which the part goes if `sends` and it is not SENT
    yet. number: of the exchange. What never comes is not a number.
    """
    if CHOSEN > 0:
        y = weighted_sum(own, weights, share, token, tokens, hidden, h, CHOSEN, FORM)
    else:
        y = tl.load(own + token * hidden + h)
    at = (site % 2) * most + token * hidden + h
    if not SENT:
        if sends:
            tl.store(outbox + at, word_of(y, number))
    come = tl.load(inbox + at, volatile=True)
    looks = 0
    while (looks < PATIENCE) & (tl.max((come.to(tl.int32) != number).to(tl.int32)) > 0):
        come = tl.load(inbox + at, volatile=True)
        looks += 1
    theirs = (come >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return y + tl.where(come.to(tl.int32) == number, theirs, float("nan"))


@triton.jit(do_not_specialize=["site"])
def sum_kernel(
    own, weights, share, inbox, outbox, passes, site, most, out, hidden,
    CHOSEN: tl.constexpr, SENT: tl.constexpr, PIECE: tl.constexpr, SITES: tl.constexpr, PATIENCE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): the sum to out [T, hidden]."""
    release(OVERLAP)
    number = exchange_number(passes, site, SITES)
    wait(OVERLAP)
    token = tl.program_id(1)
    h = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    y = exchanged(
        own, weights, share, inbox, outbox, number, site, most, token, tl.num_programs(1), hidden, h, True, CHOSEN,
        SENT, PATIENCE, FORM,
    )  # fmt: skip
    tl.store(out + token * hidden + h, y)


@triton.jit(do_not_specialize=["site"])
def wide_kernel(
    own, weights, share, inbox, outbox, passes, site, most, streams, inject, gamma, q, d, s, numbers, squares, blocks,
    hidden,
    STREAMS: tl.constexpr, COUNT: tl.constexpr, CHOSEN: tl.constexpr, SENT: tl.constexpr, SITES: tl.constexpr,
    PATIENCE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (g, t): COUNT blocks of a stream, to which the sum is added by inject [T, S]; then as `combine.Wide`."""
    release(OVERLAP)
    first = tl.program_id(0) * COUNT
    token = tl.program_id(1)
    k = (first + tl.arange(0, COUNT))[:, None] * 32 + tl.arange(0, 32)[None, :]
    factor = tl.load(gamma + k)
    number = exchange_number(passes, site, SITES)
    stream = first * 32 // hidden
    at = streams + token * STREAMS * hidden + k
    wait(OVERLAP)
    x = tl.load(at)  # on their way while the other card's part is
    strength = tl.load(inject + token * STREAMS + stream)
    y = exchanged(
        own, weights, share, inbox, outbox, number, site, most, token, tl.num_programs(1), hidden,
        k - stream * hidden, stream == 0, CHOSEN, SENT, PATIENCE, FORM,
    )  # fmt: skip
    x = fma(strength + y * 0.0, y, x, FORM)
    tl.store(at, x)
    store_blocks(x * factor, token, first, blocks, q, d, s, numbers, COUNT, True)
    tl.store(squares + token * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(x * x, axis=1), axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """x [T, K] times weight transposed, still to be made."""

    weight: Matrix
    x: Input


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What one card has of a block's output: [T, H], how it is made, or experts' parts; and what becomes of the sum.

    It is added to streams [T, S, H] by inject [T, S], in place. mix: whose input they are then, None where nobody's
    yet; fine: see `hyper.hyper_mix`.
    """

    part: torch.Tensor | Product | Parts | PromptParts
    streams: torch.Tensor
    inject: torch.Tensor
    mix: HyperMix | None
    fine: bool


class Exchange:
    """Between two cards, in steps of up to 16 columns and in prompts."""

    def __init__(self, passages: Sequence[Passage], hidden: int) -> None:
        """passages: from the first card to the second, and back."""
        self.passages, self.hidden = passages, hidden
        devices = [passage.source for passage in passages]
        # AMD's compiler may take a loop of volatile loads for one
        on_cuda = torch.version.hip is None and all(passage.source.type == "cuda" for passage in passages)
        self.words = on_cuda and all(passage.direct for passage in passages)
        inboxes = [torch.zeros(2, COLUMNS, hidden, dtype=torch.int64, device=device) for device in devices]
        passes = [torch.zeros(1, dtype=torch.int32, device=device) for device in devices]
        self._boxes = [Boxes(inboxes[card], inboxes[1 - card], passes[card]) for card in range(2)]
        self._site = 0

    def begin(self, on: Sequence[OnCard]) -> None:
        """A pass begins. on: for each card, inside what launches go to it."""
        self._site = 0
        for card in range(2):
            with on[card]():
                self._boxes[card].passes.add_(1)

    def mixed(self, blocks: Sequence[Block], on: Sequence[OnCard]) -> list[Any]:
        """Add up what both cards have, on each; then what `hyper_mix` gives of the streams, or None."""
        if not self.words or len(blocks[0].streams) > COLUMNS:
            return self._by_copies(blocks, on)
        rooms, parts = [], []
        for card in range(2):
            with on[card]():  # nothing is allocated while one card waits for the other
                rooms.append(room_of(blocks[card]))
                parts.append(made(blocks[card].part, self._boxes[card].outbox_of(self._site)))
        for card in range(2):
            with on[card]():
                exchange(blocks[card], *parts[card], self._boxes[card], self._site, rooms[card])
        self._site += 1
        assert self._site < SITES
        results = []
        for card in range(2):
            with on[card]():
                results.append(_finish(blocks[card], rooms[card]))
        return results

    def _by_copies(self, blocks: Sequence[Block], on: Sequence[OnCard]) -> list[Any]:
        whole: list[torch.Tensor] = []
        results: list[Any] = []
        for card in range(2):
            with on[card]():
                part = blocks[card].part
                if isinstance(part, Product):
                    part = linear(part.weight, part.x)
                if not isinstance(part, torch.Tensor):
                    out = torch.empty(len(blocks[card].streams), self.hidden, device=blocks[card].streams.device)
                    part = add_up(part, out)
                whole.append(part)
        self._meet(on)
        with on[0](), on[1]():  # a copy is in the order of both cards' current streams
            sent = [passage.send(part) for passage, part in zip(self.passages, whole, strict=True)]
        self._meet(on)
        for card in range(2):
            with on[card]():
                block, total = blocks[card], sent[1 - card].add_(whole[card])
                if block.mix is None:
                    hyper_combine(block.streams, block.inject, total)
                    results.append(None)
                else:
                    results.append(hyper_mix(block.streams, block.mix, block.fine, Pending(block.inject, total)))
        self._meet(on)
        return results

    def _meet(self, on: Sequence[OnCard]) -> None:
        """Where one GPU plays both cards, for whose two streams a copy is in the order of one: both wait for both."""
        device, other = (passage.source for passage in self.passages)
        if device != other or device.type != "cuda":
            return
        events = []
        for card in range(2):
            with on[card]():
                events.append(torch.cuda.current_stream(device).record_event())
        for card in range(2):
            with on[card]():
                torch.cuda.current_stream(device).wait_event(events[1 - card])


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """One card's side. inbox int64 [2, 16, H] here, outbox the other card's, passes int32 [1]: how many there were."""

    inbox: torch.Tensor
    outbox: torch.Tensor
    passes: torch.Tensor

    def outbox_of(self, site: int) -> Outbox:
        """For an exchange of this pass."""
        return Outbox(self.outbox, self.passes, site, self.outbox[0].numel())


def room_of(block: Block) -> Wide | torch.Tensor:
    """Where a step's sum goes: the streams made `Wide`, or [T, H]."""
    tokens, count, hidden = block.streams.shape
    device = block.streams.device
    if block.mix is None:
        return torch.empty(tokens, hidden, device=device)
    squares = torch.empty(tokens, count * hidden // (32 * COUNT), device=device)
    return Wide(room_for(tokens, count * hidden, True, device), squares)


Part = torch.Tensor | Parts | PromptParts


def made(part: Part | Product, outbox: Outbox) -> tuple[Part, bool]:
    """A part, and whether it has gone to the other card already: a product does, if it can be told to."""
    if not isinstance(part, Product):
        return part, False
    x = quantised(part.x)
    sent = in_tiles(part.weight, x)
    out = torch.empty(x.tokens, part.weight.rows, device=x.d.device)
    launch((part.weight,), x, out, outbox=outbox if sent else None)
    return out, sent


def exchange(
    block: Block, part: Part, sent: bool, boxes: Boxes, site: int, room: Wide | torch.Tensor, patience: int = PATIENCE
) -> None:
    """One card's side of the exchange `site` of a pass: its part goes out, unless it was sent; the sum to `room`."""
    tokens, count, hidden = block.streams.shape
    to = target(block.streams.device)
    own = weights = share = part
    chosen = 0
    if isinstance(part, Parts):
        own, weights, share, chosen = part.outputs, part.routed.weights, part.routed.share, part.routed.ids.shape[1]
    given = (own, weights, share, boxes.inbox, boxes.outbox, boxes.passes, site, boxes.inbox[0].numel())
    if isinstance(room, Wide):
        assert block.mix is not None
        x = room.streams
        wide_kernel[(count * hidden // (32 * COUNT), tokens)](
            *given, block.streams, block.inject, block.mix.norm, x.q, x.d, x.s, x.x, room.squares, x.blocks, hidden,
            STREAMS=count, COUNT=COUNT, CHOSEN=chosen, SENT=sent, SITES=SITES, PATIENCE=patience, FORM=to.form,
            OVERLAP=to.overlap, num_warps=WARPS, **to.options,
        )  # fmt: skip
    else:
        sum_kernel[(hidden // PIECE, tokens)](
            *given, room, hidden, CHOSEN=chosen, SENT=sent, PIECE=PIECE, SITES=SITES, PATIENCE=patience, FORM=to.form,
            OVERLAP=to.overlap, num_warps=WARPS, **to.options,
        )  # fmt: skip


def _finish(block: Block, room: Wide | torch.Tensor) -> Any:
    if isinstance(room, Wide):
        assert block.mix is not None
        return mix_step(block.streams, block.mix, room, block.fine)
    hyper_combine(block.streams, block.inject, room)
    return None
