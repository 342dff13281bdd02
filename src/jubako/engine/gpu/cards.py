"""Layers on several cards: each card has a run of them; the streams pass from one to the next once a step.

    card 0   embed · layers · ─┐ streams [T, S, H]
    card 1          ┌──────────┴► layers · head · draft layer · the next step's table
                    └─ the step's table goes to card 0 first

Whoever runs a step does so on the last card. The cards before join in by events, so that one captured graph spans all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ...arch.network import Network
from ...ops.gpu.boxes import Boxes
from ...ops.gpu.columns import Columns
from ...ops.gpu.matrix import Source
from ...ops.gpu.ops import GpuOps, on_device
from ...ops.gpu.peer import Passage
from .cards_lane import Lane
from .forward import run_layers


class Earlier:
    """The card with the layers before those of the card `to`: see `ops.gpu.ops.Before`."""

    logits = None

    def __init__(self, ops: GpuOps, to: torch.device, direct: bool | None = None) -> None:
        """direct: see `Passage`."""
        self.ops, self._lane = ops, Lane(ops.device, to)
        self.passage, self.back = Passage(ops.device, to, direct), Passage(to, ops.device, direct)

    def streams(self, columns: Columns) -> torch.Tensor:
        """Run a step's columns through all layers before; the streams [T, S, H] on the card after."""
        assert columns.parts is not None
        with self._lane.forked():
            theirs = Columns.of_step(self.back.fetch(columns.parts), columns.tokens)
            streams = self.ops.start(theirs)
            for _ in run_layers(self.ops, theirs, streams):
                pass
            return self.send(streams)

    def send(self, streams: torch.Tensor) -> torch.Tensor:
        """See `Passage.send`."""
        return self.passage.send(streams)

    def awake(self) -> AbstractContextManager[Any]:
        """See `GpuOps.awake`."""
        return self.ops.awake()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """See `GpuOps.ordered`."""
        with self.ops.ordered(), self._lane.ordered():
            yield

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """See `GpuOps.capturing`."""
        with self.ops.capturing(), self._lane.capturing():
            yield


def open_cards(
    network: Network,
    devices: Sequence[torch.device],
    runs: Sequence[range],
    source: Source | Sequence[Source] | None = None,
    direct: bool | None = None,
    boxes: Sequence[Boxes] = (),
    **options: Any,
) -> list[GpuOps]:
    """The operations of each card, which holds a run of layers. options: of `GpuOps`.

    source: gives tensors on the device, one for each card where there are several; direct: see `Passage`; boxes: of
    each card, if at all.
    """
    assert [index for run in runs for index in run] == list(range(len(network.layers)))
    cards: list[GpuOps] = []
    for place, (device, run) in enumerate(zip(devices, runs, strict=True)):
        own = boxes[place] if boxes else None
        given = source[place] if isinstance(source, Sequence) else source
        with on_device(device):
            ops = GpuOps(network, device, layers=run, source=given, boxes=own, **options)
        if cards:
            ops.before = Earlier(cards[-1], device, direct)
        cards.append(ops)
    return cards


def read_pieces(cards: Sequence[GpuOps], pieces: Sequence[Sequence[Columns]]) -> Iterator[torch.Tensor]:
    """Read pieces of a prompt, pieces[i][c] being the columns of piece i on card c: streams after each, in order.

    All cards work at once: card c on piece i while card c - 1 reads piece i + 1. Nothing is waited for; launches take
    turns layer by layer, so that no card's queue fills up while another's runs dry.
    """
    arrived: dict[int, torch.Tensor] = {}
    for tick in range(len(pieces) + len(cards) - 1):
        working: dict[int, torch.Tensor] = {}
        layers: list[tuple[GpuOps, Iterator[Any]]] = []
        for card, ops in enumerate(cards):
            if 0 <= tick - card < len(pieces):
                columns = pieces[tick - card][card]
                with ops.on_card():
                    working[card] = arrived[card] if card else ops.start(columns)
                layers.append((ops, run_layers(ops, columns, working[card])))
        _in_turns(layers)
        arrived = {}
        for card, streams in working.items():
            if card + 1 < len(cards):
                before = cards[card + 1].before
                assert before is not None
                arrived[card + 1] = before.send(streams)
            else:
                yield streams


def _in_turns(layers: list[tuple[GpuOps, Iterator[Any]]]) -> None:
    """A layer of each, until all are through."""
    end = object()
    while layers:
        left = []
        for ops, rest in layers:
            with ops.on_card():
                if next(rest, end) is not end:
                    left.append((ops, rest))
        layers = left
