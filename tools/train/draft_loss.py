# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""The draft layer over whole lines, three drafts deep, as it is used; its loss, and how many drafts would be kept.

Position p holds the streams of token p (the trunk's at depth one, the layer's own of p-1 deeper down) and token p+1,
and guesses token p+2. A round that begins at `at` stands at at, at+1, at+2. Its passes look back on the keys that the
trunk's streams gave for all positions up to `at`, and on the round's own after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from jubako.arch.config import Config

from . import network
from .model import DRAFTS
from .network import Pass, Weights

SHARPNESS = 1.5  # of the trunk's distribution as a target
HARD = 0.5  # share of the loss that only asks for the trunk's likeliest token
DEPTHS = (2.3, 1.75, 1.0)  # what a kept draft of each depth brings, with those it opens
BROKEN = 0.2  # weight where an earlier draft of the round was wrong


def draft_layer(
    streams: Tensor, w: Weights, config: Config, run: Pass, seen: Tensor, past: list[tuple[Tensor, Tensor]], skip: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams after the layer from position `skip` on; keys and values of all positions.

    seen [T - skip, keys]: which keys a position looks back on, those of `past` first, then the own.
    """
    mixed, inject = network.hyper_mix(streams, w, "hc_attn_")
    q, gate, k, v = (t.transpose(1, 2) for t in network.project(mixed, w, config, run))
    repeat = q.shape[1] // k.shape[1]
    keys, values = (torch.cat(pair, dim=2).repeat_interleave(repeat, dim=1) for pair in zip(*past, (k, v), strict=True))
    out = F.scaled_dot_product_attention(q[:, :, skip:], keys, values, attn_mask=seen)
    out = (out * torch.sigmoid(gate[:, :, skip:])).transpose(1, 2)
    assert inject is not None
    streams = network.combine(
        streams[:, skip:], inject[:, skip:], network.linear(out.flatten(-2), w["attn_output.weight"])
    )
    mixed, inject = network.hyper_mix(streams, w, "hc_ffn_")
    return network.combine(streams, inject, network.experts(mixed, w, config)[0]), k, v


def divergence(streams: Tensor, w: Weights, output: Tensor, wanted: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Loss [B, T] against the trunk's logits and its choice, and where both would write the same token."""
    scores = network.logits(streams, w, "nextn.hc_head_", output).float()
    target = (wanted.float() * SHARPNESS).softmax(-1) * (1 - HARD)
    soft = -(target * scores.log_softmax(-1)).sum(-1)
    hard = F.cross_entropy(scores.flatten(0, 1), best.flatten(), reduction="none").view(best.shape)
    return soft + HARD * hard, scores.argmax(-1) == best


class DraftLoss:
    """Losses of lines of one length, from position `skip` on. `wrap` compiles the parts."""

    def __init__(
        self, config: Config, run: Pass, skip: int, wrap: Callable[[Any], Any] = lambda function: function
    ) -> None:
        self.config, self.skip = config, skip
        self.runs = run, replace(run, cos=run.cos[skip:], sin=run.sin[skip:])
        self.layer, self.compare, self.enter = wrap(draft_layer), wrap(divergence), wrap(network.draft_input)
        self.wanted = wrap(network.logits)
        place = torch.arange(len(run.cos), device=run.cos.device)
        at, own = place[skip:, None], place[skip:]
        self.seen = (
            place <= at,
            torch.cat([place < at, own == at], dim=1),
            torch.cat([place < at - 1, own == at - 1, own == at], dim=1),
        )

    def __call__(
        self,
        ids: Tensor,
        best: Tensor,
        streams: Tensor,
        trust: Tensor,
        part: Weights,
        head: Weights,
        embed: Tensor,
        output: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Loss and agreement [DRAFTS, B, T - skip]. ids [B, T + 1]; best [B, T]; trust [B, T - skip] weighs places."""
        skip = self.skip
        with torch.no_grad():
            wanted = self.wanted(streams[:, skip:].roll(-1, 1), head, "", output)
            embedded = F.embedding(ids[:, 1:], embed).to(streams.dtype)
            following = best[:, skip:].roll(-1, 1)
        last = torch.arange(wanted.shape[1], device=ids.device)
        trust = trust * (last < len(last) - 1)
        wide, agreed = streams, []
        past: list[tuple[Tensor, Tensor]] = []
        unbroken = torch.ones_like(trust, dtype=torch.bool)
        total = trust.new_zeros(())
        for depth in range(DRAFTS):
            if depth == 1:
                embedded = embedded[:, skip:]
            entered = self.enter(network.shifted(wide, 1) if depth else wide, embedded, part)
            run = self.runs[depth > 0]
            wide, k, v = self.layer(entered, part, self.config, run, self.seen[depth], past, 0 if depth else skip)
            past = [*past, (k, v)]
            loss, same = self.compare(wide, part, output, wanted, following)
            weight = trust * (last >= depth) * torch.where(unbroken, 1.0, BROKEN)
            total = total + DEPTHS[depth] * (loss * weight).sum() / trust.sum()
            agreed.append(same.detach())
            unbroken = F.pad((unbroken & same)[:, :-1], (1, 0))
        return total / sum(DEPTHS), torch.stack(agreed)


def kept(agreed: NDArray[np.bool_], begins: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Drafts kept at each depth and rounds, as `tools.train.drafts` counts them, over lines [DRAFTS, B, T].

    Rounds of line b begin at begins[b] and go on until `length` tokens are written.
    """
    counts = np.zeros(DRAFTS + 1, np.int64)
    for line, begin in enumerate(begins):
        at = int(begin)
        while at < begin + length:
            good = 0
            while good < DRAFTS and agreed[good, line, at + good]:
                counts[good] += 1
                good += 1
            counts[DRAFTS] += 1
            at += good + 1
    return counts
