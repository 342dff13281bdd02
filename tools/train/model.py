"""The training network as one pass over sequences: streams, losses, drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from jubako.arch.config import Config

from . import network
from .network import Network, Pass, Weights

DRAFTS = 3


@dataclass
class Losses:
    """Sums over a batch: cross entropy of the next token, of the drafts, balance, index loss and recall, per layer."""

    token: Tensor
    drafts: Tensor  # [DRAFTS]
    layers: Tensor  # [3]: balance (mean), index loss (mean over attention layers), recall


def ngram_rows(config: Config, ids: Tensor) -> Tensor:
    """Table rows of tokens [B, T], int64 [B, T, heads]: `jubako.arch.ngram`, on the device."""
    ngram = config.ngram
    assert ngram is not None
    line, rows = ids.long(), []
    cut = torch.zeros_like(line, dtype=torch.bool)
    mixed = line * ngram.multipliers[0]
    for back in range(1, ngram.size):
        token = F.pad(line, (back, 0), value=ngram.eos)[:, : line.shape[1]]
        cut = cut | (token == ngram.eos)
        mixed = mixed ^ (torch.where(cut, ngram.eos, token) * ngram.multipliers[back])
        heads = range((back - 1) * ngram.heads_per_ngram, back * ngram.heads_per_ngram)
        rows += [mixed % ngram.head_sizes[head] + ngram.head_offsets[head] for head in heads]
    return torch.stack(rows, dim=-1)


def make_pass(config: Config, tokens: int, sparse: bool, dtype: torch.dtype, device: str, probes: int = 64) -> Pass:
    """Angles of all positions, and random positions for the index lesson."""
    angle = torch.arange(tokens, device=device)[:, None].float() * config.rope_frequencies().to(device)
    low = min(tokens // 8, tokens - 1)
    probe = torch.from_numpy(np.sort(np.random.default_rng().integers(low, tokens, probes))).to(device)
    return Pass(angle.cos(), angle.sin(), probe, sparse, dtype)


def cross_entropy(streams: Tensor, w: Weights, prefix: str, output: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over tokens."""
    scores = network.logits(streams, w, prefix, output).float().flatten(0, 1)
    loss = F.cross_entropy(scores, targets.flatten(), reduction="none")
    return (loss * weights.flatten()).sum() / weights.sum().clamp(min=1)


class Model:
    """Runs a `Network`; `wrap` compiles the parts that repeat."""

    def __init__(self, net: Network, wrap: Callable[[Any], Any] = lambda function: function) -> None:
        self.net, self.config = net, net.config
        self.layer, self.inject, self.draft_input = (
            wrap(network.layer),
            wrap(network.ngram_inject),
            wrap(network.draft_input),
        )
        self.cross_entropy, self.rows = wrap(cross_entropy), wrap(ngram_rows)
        self.parts = [net.part(f"blk.{index}.") for index in range(self.config.layers + 1)]
        self.head = net.part("output_hc_")

    def streams(self, ids: Tensor, run: Pass) -> tuple[Tensor, Tensor]:
        """Streams [B, T, S, H] after the last layer, and each layer's losses [layers, 3]."""
        config, w = self.config, self.net.weights
        assert config.ngram is not None
        streams = F.embedding(ids, w["token_embd.weight"]).to(run.dtype)[:, :, None].repeat(1, 1, config.streams, 1)
        extras = []
        for index in range(config.layers):
            if index == config.ngram.layer:
                rows = F.embedding(self.rows(config, ids), w["per_layer_token_embd.weight"]).flatten(-2).to(run.dtype)
                streams = self.inject(streams, self.parts[index], rows, config)
            streams, extra = self.layer(streams, self.parts[index], config, run)
            extras.append(extra)
        return streams, torch.stack(extras)

    def draft(self, streams: Tensor, ids: Tensor, run: Pass) -> tuple[Tensor, Tensor]:
        """The draft layer's streams from those of the tokens before `ids` [B, T]."""
        embedded = F.embedding(ids, self.net.weights["token_embd.weight"]).to(run.dtype)
        part = self.parts[self.config.layers]
        result: tuple[Tensor, Tensor] = self.layer(self.draft_input(streams, embedded, part), part, self.config, run)
        return result

    def losses(self, ids: Tensor, weights: Tensor, run: Pass, drafted: int) -> Losses:
        """Of sequences ids [B, T + 1] with loss weights [B, T + 1]; drafts on the first `drafted` sequences."""
        output = self.net.weights["output.weight"]
        streams, extras = self.streams(ids[:, :-1], run)
        token = self.cross_entropy(streams, self.head, "", output, ids[:, 1:], weights[:, 1:])
        drafts = []
        wide, following = streams[:drafted], ids[:drafted]
        for depth in range(DRAFTS if drafted else 0):
            # position p holds the streams of token p (depth 0) or the last step's of p - 1, and the token p + 1
            wide, extra = self.draft(network.shifted(wide, 1) if depth else wide, following[:, 1:], run)
            extras = torch.cat([extras, extra[None]])
            targets, mask = following[:, 2:], weights[:drafted, 2:]
            targets, mask = F.pad(targets, (0, 1)), F.pad(mask, (0, 1))
            drafts.append(self.cross_entropy(wide, self.parts[-1], "nextn.hc_head_", output, targets, mask))
        balance = extras[:, 0].mean()
        index = extras[extras[:, 2] > 0][:, 1:].mean(0)
        return Losses(
            token, torch.stack(drafts) if drafts else token.new_zeros(DRAFTS), torch.cat([balance[None], index])
        )
