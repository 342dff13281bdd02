"""Every layer on two cards at once: half of the heads and of each expert's rows on either, two exchanges a layer.

    card 0   half of a block ─┐       ┌─► streams, mix ─► half of the next block …
                              ├─ sum ─┤                                                 both keep the same streams
    card 1   half of a block ─┘       └─► streams, mix ─► half of the next block …

In a step each card makes the logits of half the vocabulary, the first into the second's memory. There the whole head is
too, for prompts, and the draft layer: an instruction set without layers, which has `Twins` before it. Decoding waits
for half the bytes of one card; text agrees with one card's within rounding, as sums are cut in two.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...arch.network import Network
from ...ops.gpu import route
from ...ops.gpu.columns import Columns
from ...ops.gpu.matrix import Source
from ...ops.gpu.ops import GpuOps, on_device
from ...ops.gpu.peer import Passage
from ...ops.gpu.peer_exchange import Block, Exchange, Mixture, OnCard, Product
from ...ops.gpu.peer_shard import shard
from ...ops.gpu.state import GdnMemory
from ...ops.gpu.target import target
from .cards_lane import Lane


def halves(
    ops: GpuOps, columns: Columns, streams: torch.Tensor, head_mix: Any | None = None
) -> Generator[Block, Any, None]:
    """One card's half of all layers on streams [T, S, H], in place: gives parts of blocks, is given mixes.

    head_mix: whose input the streams are in the end, where it is wanted.
    """
    mixed: Any = None
    layers = ops.weights.layers
    for index, layer in enumerate(layers):
        if layer.ngram is not None:
            ops.ngram_inject(layer.ngram, streams, columns)
        x, inject = mixed if mixed is not None else ops.hyper_mix(streams, layer.hc_attn)
        mixer: Any = layer.mixer
        memory = ops.pool.layers[index]
        if isinstance(memory, GdnMemory):
            part = Product(mixer.out, ops.gdn(mixer, x, memory, columns))
        else:
            part = Product(mixer.output, ops.attention(mixer, x, memory, columns))
        assert inject is not None
        x, inject = yield Block(part, streams, inject, layer.hc_ffn, False)
        routed = route.route_experts(layer.experts, x, ops.config.experts_used)
        follower = layers[index + 1] if index + 1 < len(layers) else None
        mix = head_mix if follower is None else None if follower.ngram is not None else follower.hc_attn
        mixed = yield Block(Mixture(layer.experts, x, routed), streams, inject, mix, True)


class Twins:
    """Two cards that share every layer and the head: see `ops.gpu.ops.Before`. What comes after is on the second."""

    def __init__(self, cards: Sequence[GpuOps], direct: bool | None = None) -> None:
        self.cards = cards
        first, second = (ops.device for ops in cards)
        self._passages = [Passage(first, second, direct), Passage(second, first, direct)]
        self._exchange = Exchange(self._passages, cards[0].config.hidden)
        # a launch goes by the kind of card that its output is on
        self._reaches = self._exchange.words and target(first) == target(second)
        self._lane = Lane(first, second)
        self._on: tuple[OnCard, OnCard] = (self._lane, cards[1].on_card)
        self.ordered, self.capturing = self._lane.ordered, self._lane.capturing

    @contextmanager
    def awake(self) -> Iterator[None]:
        """See `GpuOps.awake`."""
        with self.cards[0].awake(), self.cards[1].awake():
            yield

    def streams(self, columns: Columns) -> torch.Tensor:
        """Run columns through all layers; the streams [T, S, H] on the second card."""
        self._lane.fork()
        streams, _ = self._run(columns, head=False)
        return self._joined(streams)

    def logits(self, columns: Columns, out: torch.Tensor) -> torch.Tensor:
        """Run a step's columns through all layers; logits into out [T, vocabulary]. The streams on the second card."""
        self._lane.fork()
        streams, mixes = self._run(columns, head=True)
        first, second = (ops.weights.output for ops in self.cards)
        assert first is not None and second is not None
        words = out[:, : first.rows]
        with self._lane():  # straight into the other card's memory, where that can be reached
            there = words if self._reaches else None
            half = self.cards[0].linear(first, mixes[0][0], there)
            sent = half if there is not None else self._passages[0].send(half)
        with self.cards[1].on_card():
            self.cards[1].linear(second, mixes[1][0], out[:, first.rows :])
        streams = self._joined(streams)
        if sent is not words:
            words.copy_(sent)
        return streams

    def _joined(self, streams: torch.Tensor) -> torch.Tensor:
        """The streams for whom comes after. They are copied: that stands between the first card and launches that may
        begin before the one in front of them has ended, but know of no other."""
        self._lane.join()
        return streams.clone()

    def _run(self, columns: Columns, head: bool) -> tuple[torch.Tensor, list[Any]]:
        """The second card's streams after all layers; what both cards' heads read, if that is wanted."""
        on = self._on
        with self._lane():
            theirs = self._sent(columns)
        runs, streams, blocks = [], [], []
        mixes: list[Any] = []
        self._exchange.begin(on)
        for ops, mine, there in zip(self.cards, (theirs, columns), on, strict=True):
            with there():
                streams.append(ops.start(mine))
                runs.append(halves(ops, mine, streams[-1], ops.weights.head_mix if head else None))
                blocks.append(next(runs[-1]))
        while blocks:
            mixes, blocks = self._exchange.mixed(blocks, on), []
            for run, mixed, there in zip(runs, mixes, on, strict=True):
                with there():
                    blocks += _given(run, mixed)
        return streams[1], mixes

    def _sent(self, columns: Columns) -> Columns:
        if columns.parts is not None:
            return Columns.of_step(self._passages[1].fetch(columns.parts), columns.tokens)
        send = self._passages[1].send
        where = (send(columns.ids), send(columns.slots), send(columns.positions))
        return Columns(*where, None, columns.slot, columns.start)

    def send(self, streams: torch.Tensor) -> torch.Tensor:
        """They are where they are wanted."""
        return streams


def _given(run: Generator[Block, Any, None], mixed: Any) -> list[Block]:
    """What a card has next, nothing at the end."""
    try:
        return [run.send(mixed)]
    except StopIteration:
        return []


def open_twins(
    network: Network,
    devices: Sequence[torch.device],
    source: Source | Sequence[Source] | None = None,
    direct: bool | None = None,
    **options: Any,
) -> tuple[GpuOps, list[GpuOps]]:
    """The head's operations, on the second card, and those of both cards. Arguments are those of `cards.open_cards`."""
    given = source if isinstance(source, Sequence) else (source, source)
    cards = []
    for place, device in enumerate(devices):
        part, cut = shard(network, place, given[place])
        with on_device(device):
            cards.append(GpuOps(part, device, source=cut, **options))
    end = len(network.layers)
    with on_device(devices[1]):
        head = GpuOps(network, devices[1], layers=range(end, end), source=given[1], **options)
    head.before = Twins(cards, direct)
    return head, cards
