"""`Exchange`: two cards add up what each has of a block's output, and both get the same sum.

A step's columns: each number crosses the link together with the number of its exchange, in one store of 8 bytes, so
the other card knows by the word itself that it has come; no flag, no fence. Two inboxes in turn: who sends into one
again has received what the other card sent after it had read it. A prompt's tokens are copied.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import triton
import triton.language as tl

from .experts import Parts, add_up, weighted_sum
from .hyper_prompt import PromptParts
from .launch import COLUMNS
from .peer import Passage
from .target import release, target, wait

SITES = 1 << 12  # exchanges of a pass, at most
PIECE = 256  # numbers of a program
PATIENCE = 1 << 22  # looks into the inbox before a card gives up: seconds
OnCard = Callable[[], AbstractContextManager[Any]]


@triton.jit(do_not_specialize=["site"])
def exchange_kernel(
    own, weights, share, inbox, outbox, passes, out, hidden, most, site,
    CHOSEN: tl.constexpr, PIECE: tl.constexpr, SITES: tl.constexpr, PATIENCE: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): own [T, hidden], or experts' parts if CHOSEN, plus the other card's, to out [T, hidden].

    inbox, outbox int64 [2, most]: here, and the other card's. A number that never comes is not a number.
    """
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(1)
    h = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    inside = h < hidden
    if CHOSEN > 0:
        y = weighted_sum(
            own, weights, share, token, tl.num_programs(1), hidden, tl.minimum(h, hidden - 1), CHOSEN, FORM
        )
    else:
        y = tl.load(own + token * hidden + h, mask=inside, other=0.0)
    number = (tl.load(passes) * SITES + site).to(tl.int32)
    at = (site % 2) * most + token * hidden + h
    word = (y.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (number.to(tl.int64) & 0xFFFFFFFF)
    tl.store(outbox + at, word, mask=inside)
    come = tl.load(inbox + at, mask=inside, other=word, volatile=True)
    looks = 0
    while (looks < PATIENCE) & (tl.max((come.to(tl.int32) != number).to(tl.int32), axis=0) > 0):
        come = tl.load(inbox + at, mask=inside, other=word, volatile=True)
        looks += 1
    theirs = (come >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    theirs = tl.where(come.to(tl.int32) == number, theirs, float("nan"))
    tl.store(out + token * hidden + h, y + theirs, mask=inside)


class Exchange:
    """Between two cards, in steps of up to 16 columns and in prompts."""

    def __init__(self, passages: Sequence[Passage], hidden: int) -> None:
        """passages: from the first card to the second, and back."""
        self.passages, self.hidden = passages, hidden
        devices = [passage.source for passage in passages]
        self.words = all(passage.direct and passage.source.type == "cuda" for passage in passages)
        self._inboxes = [torch.zeros(2, COLUMNS, hidden, dtype=torch.int64, device=device) for device in devices]
        self._passes = [torch.zeros(1, dtype=torch.int32, device=device) for device in devices]
        self._site = 0
        for passage, inbox in zip(passages, self._inboxes, strict=True):
            passage.send(inbox)  # opens each card's memory to the other

    def begin(self, on: Sequence[OnCard]) -> None:
        """A pass begins. on: for each card, inside what launches go to it."""
        self._site = 0
        for card in range(2):
            with on[card]():
                self._passes[card] += 1

    def sums(self, parts: Sequence[torch.Tensor | Parts | PromptParts], tokens: int, on: Sequence[OnCard]) -> list[Any]:
        """What each card has, [T, H] or experts' parts, added up: the same sum [T, H] on each."""
        if self.words and tokens <= COLUMNS:
            return self._by_words(parts, tokens, on)
        whole, sent = [], []
        for card in range(2):
            with on[card]():
                part = parts[card]
                if not isinstance(part, torch.Tensor):
                    part = add_up(part, torch.empty(tokens, self.hidden, device=part.outputs.device))
                whole.append(part)
        for card in range(2):
            with on[card]():
                sent.append(self.passages[card].send(whole[card]))
        for card in range(2):
            with on[card]():
                whole[card] = sent[1 - card].add_(whole[card])
        return whole

    def _by_words(self, parts: Sequence[Any], tokens: int, on: Sequence[OnCard]) -> list[torch.Tensor]:
        sums = []
        for card in range(2):
            with on[card]():
                sums.append(torch.empty(tokens, self.hidden, device=self.passages[card].source))
        for card in range(2):
            with on[card]():
                send(
                    parts[card],
                    self._inboxes[card],
                    self._inboxes[1 - card],
                    self._passes[card],
                    self._site,
                    sums[card],
                )
        self._site += 1
        assert self._site < SITES
        return sums


def send(
    part: torch.Tensor | Parts, inbox: torch.Tensor, outbox: torch.Tensor, passes: torch.Tensor, site: int,
    out: torch.Tensor, patience: int = PATIENCE,
) -> None:  # fmt: skip
    """One card's side of the exchange `site` of a pass: its part goes to outbox, the sum to out [T, H]."""
    tokens, hidden = out.shape
    own = weights = share = part
    chosen = 0
    if isinstance(part, Parts):
        own, weights, share, chosen = part.outputs, part.routed.weights, part.routed.share, part.routed.ids.shape[1]
    to = target(out.device)
    exchange_kernel[(-(-hidden // PIECE), tokens)](
        own, weights, share, inbox, outbox, passes, out, hidden, COLUMNS * hidden, site,
        CHOSEN=chosen, PIECE=PIECE, SITES=SITES, PATIENCE=patience, FORM=to.form, OVERLAP=to.overlap, num_warps=2,
        **to.options,
    )  # fmt: skip
