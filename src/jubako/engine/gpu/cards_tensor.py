"""Every layer on two cards at once: half of the heads and of each expert's rows on either, two exchanges a layer.

    card 0   half of a block ─┐       ┌─► streams, mix ─► half of the next block …
                              ├─ sum ─┤                                                 both keep the same streams
    card 1   half of a block ─┘       └─► streams, mix ─► half of the next block …

The head, and the draft layer whole, are on the second card: an instruction set without layers, which has `Twins` before
it. Decoding waits for half the bytes of one card; text agrees with one card's within rounding, as sums are cut in two.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ...arch.network import Network
from ...ops.gpu import experts, route
from ...ops.gpu.columns import Columns
from ...ops.gpu.matrix import Source
from ...ops.gpu.ops import GpuOps, on_device
from ...ops.gpu.peer import Passage
from ...ops.gpu.peer_exchange import Block, Exchange, OnCard
from ...ops.gpu.peer_shard import shard
from ...ops.gpu.state import GdnMemory


def halves(ops: GpuOps, columns: Columns, streams: torch.Tensor) -> Generator[Block, Any, None]:
    """One card's half of all layers on streams [T, S, H], in place: gives parts of blocks, is given mixes."""
    mixed: Any = None
    layers = ops.weights.layers
    for index, layer in enumerate(layers):
        if layer.ngram is not None:
            ops.ngram_inject(layer.ngram, streams, columns)
        x, inject = mixed if mixed is not None else ops.hyper_mix(streams, layer.hc_attn)
        mixer: Any = layer.mixer
        memory = ops.pool.layers[index]
        if isinstance(memory, GdnMemory):
            part = ops.linear(mixer.out, ops.gdn(mixer, x, memory, columns))
        else:
            part = ops.linear(mixer.output, ops.attention(mixer, x, memory, columns))
        assert inject is not None
        x, inject = yield Block(part, streams, inject, layer.hc_ffn, False)
        routed = route.route_experts(layer.experts, x, ops.config.experts_used)
        following = layers[index + 1] if index + 1 < len(layers) else None
        mix = None if following is None or following.ngram is not None else following.hc_attn
        mixed = yield Block(experts.parts_of(layer.experts, x, routed), streams, inject, mix, True)


class Twins:
    """Two cards that share every layer: see `ops.gpu.ops.Before`. What comes after is on the second."""

    def __init__(self, cards: Sequence[GpuOps], direct: bool | None = None) -> None:
        self.cards = cards
        first, second = (ops.device for ops in cards)
        self._passages = [Passage(first, second, direct), Passage(second, first, direct)]
        self._exchange = Exchange(self._passages, cards[0].config.hidden)
        self._cuda = first.type == "cuda"
        if self._cuda:
            with torch.cuda.device(first):
                self._memory = torch.cuda.MemPool()
            self._lane: Any = torch.cuda.Stream(first)  # type: ignore[no-untyped-call]

    def streams(self, columns: Columns) -> torch.Tensor:
        """Run columns through all layers; the streams [T, S, H] on the second card."""
        if not self._cuda:
            return self._run(columns, nullcontext())
        here = torch.cuda.current_stream(self.cards[1].device)
        self._lane.wait_stream(here)
        streams = self._run(columns, torch.cuda.stream(self._lane))
        here.wait_stream(self._lane)
        # a copy stands between the cards and the launches that follow: those may begin early, after one launch only
        return streams.clone()

    def _run(self, columns: Columns, lane: AbstractContextManager[Any]) -> torch.Tensor:
        on: Sequence[OnCard] = (lambda: lane, self.cards[1].on_card)
        with lane:
            theirs = self._sent(columns)
        runs, streams, parts = [], [], []
        self._exchange.begin(on)
        for ops, mine, there in zip(self.cards, (theirs, columns), on, strict=True):
            with there():
                streams.append(ops.start(mine))
                runs.append(halves(ops, mine, streams[-1]))
                parts.append(next(runs[-1]))
        while parts:
            mixes, parts = self._exchange.mixed(parts, on), []
            for run, mixed, there in zip(runs, mixes, on, strict=True):
                with there():
                    parts += _given(run, mixed)
        return streams[1]

    def _sent(self, columns: Columns) -> Columns:
        send = self._passages[1].send
        if columns.parts is not None:
            return Columns.of_step(send(columns.parts), columns.tokens)
        where = (send(columns.ids), send(columns.slots), send(columns.positions))
        return Columns(*where, None, columns.slot, columns.start)

    def send(self, streams: torch.Tensor) -> torch.Tensor:
        """They are where they are wanted."""
        return streams

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """See `GpuOps.ordered`."""
        if not self._cuda:
            yield
            return
        there, here = (torch.cuda.current_stream(ops.device) for ops in self.cards)
        here.wait_stream(there)
        yield
        there.wait_stream(here)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """See `GpuOps.capturing`."""
        if not self._cuda:
            yield
            return
        with torch.cuda.use_mem_pool(self._memory, self.cards[0].device):
            yield


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
            cards.append(GpuOps(part, device, source=cut, head=False, **options))
    end = len(network.layers)
    with on_device(devices[1]):
        head = GpuOps(network, devices[1], layers=range(end, end), source=given[1], **options)
    head.before = Twins(cards, direct)
    return head, cards
