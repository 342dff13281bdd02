"""`Exchange`: two cards add up what each has of a block's output, and both get the same sum.

A step's columns: numbers cross the link as words (`peer_word`), from the launch that makes them where that can send
them. Two inboxes in turn: who sends into one again has received what the other card sent after it had read it. A
prompt's tokens are copied.
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

from .combine import Pending, hyper_combine
from .expert_down import adds_up
from .experts import Experts, Routed, parts_of, summed
from .hyper import HyperMix, hyper_mix
from .launch import COLUMNS
from .linear import Input, launch, linear, quantised
from .matrix import Matrix
from .peer import Passage
from .peer_word import SITES, Outbox, exchange_number, word_of
from .target import release, target, wait
from .tile_linear import in_tiles

PIECE, WARPS = 256, 2  # numbers of a program, and its warps
PATIENCE = 1 << 22  # looks into the inbox before a card gives up: seconds
OnCard = Callable[[], AbstractContextManager[Any]]


@triton.jit(do_not_specialize=["site"])
def sum_kernel(
    part, inbox, outbox, passes, site, most, hidden,
    SENT: tl.constexpr, PIECE: tl.constexpr, SITES: tl.constexpr, PATIENCE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): add the other card's part to this one's, part [T, hidden].

    inbox, outbox int64 [2, most]: here, and the other card's, into which the part goes if it is not SENT yet. What
    never comes is not a number.
    """
    release(OVERLAP)
    number = exchange_number(passes, site, SITES)
    at = tl.program_id(1) * hidden + tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    wait(OVERLAP)
    y = tl.load(part + at)
    box = (site % 2) * most
    if not SENT:
        tl.store(outbox + box + at, word_of(y, number))
    come = tl.load(inbox + box + at, volatile=True)
    looks = 0
    while (looks < PATIENCE) & (tl.max((come.to(tl.int32) != number).to(tl.int32)) > 0):
        come = tl.load(inbox + box + at, volatile=True)
        looks += 1
    theirs = (come >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(part + at, y + tl.where(come.to(tl.int32) == number, theirs, float("nan")))


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """x [T, K] times weight transposed, still to be made."""

    weight: Matrix
    x: Input


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """The sum of the experts that x [T, H] is routed to, still to be made."""

    layer: Experts
    x: Input
    routed: Routed


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One card's part [T, H] of a block's output, or how it is made, and what becomes of the sum.

    It is added to streams [T, S, H] by inject [T, S], in place. mix: whose input they are then, None where nobody's
    yet; fine: see `hyper.hyper_mix`.
    """

    part: Product | Mixture | torch.Tensor
    streams: torch.Tensor
    inject: torch.Tensor
    mix: HyperMix | None
    fine: bool


class Exchange:
    """Between two cards, in steps of up to 16 columns and in prompts."""

    def __init__(self, passages: Sequence[Passage], hidden: int) -> None:
        """passages: from the first card to the second, and back."""
        self.passages = passages
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
        parts, results = [], []
        for card in range(2):
            with on[card]():
                parts.append(made(blocks[card].part, self._boxes[card].outbox_of(self._site)))
        for card in range(2):
            with on[card]():  # nothing is allocated while one card waits for the other
                exchange(*parts[card], self._boxes[card], self._site)
        self._site += 1
        assert self._site < SITES
        for card in range(2):
            with on[card]():
                results.append(combined(blocks[card], parts[card][0]))
        return results

    def _by_copies(self, blocks: Sequence[Block], on: Sequence[OnCard]) -> list[Any]:
        whole: list[torch.Tensor] = []
        results: list[Any] = []
        for card in range(2):
            with on[card]():
                whole.append(added(blocks[card].part))
        self._meet(on)
        with on[0](), on[1]():  # a copy is in the order of both cards' current streams
            sent = [passage.send(part) for passage, part in zip(self.passages, whole, strict=True)]
        self._meet(on)
        for card in range(2):
            with on[card]():
                results.append(combined(blocks[card], sent[1 - card].add_(whole[card])))
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


def made(part: Product | Mixture | torch.Tensor, outbox: Outbox) -> tuple[torch.Tensor, bool]:
    """A step's part [T, H], and whether it has gone to the other card already."""
    if isinstance(part, torch.Tensor):
        return part, False
    if isinstance(part, Mixture):
        return added(part, outbox), adds_up(part.layer)
    x = quantised(part.x)
    sent = in_tiles(part.weight, x)
    out = torch.empty(x.tokens, part.weight.rows, device=x.d.device)
    launch((part.weight,), x, out, outbox=outbox if sent else None)
    return out, sent


def added(part: Product | Mixture | torch.Tensor, outbox: Outbox | None = None) -> torch.Tensor:
    """A part [T, H] of any number of tokens. outbox: of the other card, for experts that can be sent there."""
    if isinstance(part, torch.Tensor):
        return part
    if isinstance(part, Product):
        return linear(part.weight, part.x)
    return summed(parts_of(part.layer, part.x, part.routed, outbox=outbox))


def exchange(part: torch.Tensor, sent: bool, boxes: Boxes, site: int, patience: int = PATIENCE) -> None:
    """One card's side of exchange `site` of a pass: part [T, H] goes out, unless it was sent, and becomes the sum."""
    tokens, hidden = part.shape
    to = target(part.device)
    sum_kernel[(hidden // PIECE, tokens)](
        part, boxes.inbox, boxes.outbox, boxes.passes, site, boxes.inbox[0].numel(), hidden,
        SENT=sent, PIECE=PIECE, SITES=SITES, PATIENCE=patience, OVERLAP=to.overlap, num_warps=WARPS,
        **to.options,
    )  # fmt: skip


def combined(block: Block, total: torch.Tensor) -> Any:
    """What the next block reads once the sum [T, H] is in the streams; None where that is not wanted."""
    if block.mix is not None:
        return hyper_mix(block.streams, block.mix, block.fine, Pending(block.inject, total))
    hyper_combine(block.streams, block.inject, total)
    return None
