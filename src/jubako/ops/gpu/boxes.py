"""`Boxes`: a card's routed experts when they lie in slots and in main memory, and the CPU's threads that work with it.

Steps find absent experts through `away`; prompts of more than 16 tokens get all of a layer's into slots for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...arch import weights as arch
from ...errors import MachineError
from .away import ERROR, MOST_NAMES, Away, Link, Mailbox
from .host import HostExperts
from .link import SPARE, fits, link_of
from .residents import Residents, spread
from .slots import Slots
from .stream import ExpertStream

if TYPE_CHECKING:
    from ... import _cpu

EARLY = 2  # experts of a layer fetched before it asks, at most: what the link brings while the layer attends
PART = 2  # of so many absent ones one is: the threads take one alone sooner than the link brings two
NAMED = 8  # others that the threads call into their caches before it asks, at most


class Awake:
    """Of `Boxes.awake`. Every step passes here while the card has nothing to do: no more than must be."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes, self._words = boxes, boxes.mailbox.words.numpy()

    def __enter__(self) -> None:
        self._boxes.threads.begin()

    def __exit__(self, kind: object, *failed: object) -> None:
        self._boxes.threads.end()
        if self._words[ERROR] and kind is None:
            raise MachineError(f"{self._boxes.mailbox.trouble}; start again, or with fewer experts in main memory")


class Boxes:
    """The experts of a run of layers.

    residents  which of them have slots
    counts     int32 [layers, experts] on the device: how often each was chosen by tokens of steps
    """

    def __init__(
        self,
        layers: Sequence[arch.Experts],
        host: HostExperts,
        slots: int,
        chosen: int,
        device: torch.device,
        order: np.ndarray | None = None,
        together: int | None = None,
    ) -> None:
        """slots: of all layers together; chosen: experts of a token; order [n, 2]: (layer, expert), the first of
        whom get the slots; together: see `ExpertStream`."""
        self.layers, self.host = list(layers), host
        experts = layers[0].gate.shape[0]
        self.residents = Residents(layers, host, slots, device, spare=SPARE)
        self.residents.fill(spread(len(layers), experts) if order is None else order)
        self.stream = ExpertStream(self.residents, together)
        self.counts = torch.zeros(len(layers), experts, dtype=torch.int32, device=device)
        self.mailbox = Mailbox.of(chosen, layers[0].gate.shape[-1], device)
        self.foresee(EARLY, NAMED)
        self.links = self._links()
        self._threads: _cpu.ExpertThreads | None = self.mailbox.threads(self._native())
        self._awake = Awake(self)

    def _native(self) -> list[_cpu.ExpertLayer]:
        from ... import _cpu

        made = []
        for index, layer in enumerate(self.layers):
            types = [tensor.type.id for tensor in (layer.gate, layer.up, layer.down)]
            size, hidden = layer.gate.shape[-2:]
            scales = None if self.residents.scales is None else self.residents.scales[index]
            addresses = self.host.addresses[index]
            made.append(_cpu.ExpertLayer(types, size, hidden, layer.down.shape[-1], addresses, scales))
        return made

    def _links(self) -> dict[int, Link]:
        """Of the layers whose absent experts the GPU can fetch itself."""
        made: dict[int, Link] = {}
        for shape, pool in self.residents.pools.items():
            layers = [index for index, own in enumerate(self.residents.shapes) if own == shape]
            places = [self.host.addresses[index] for index in layers]
            if self.host.fixed and pool.scales is None and fits(shape, np.stack(places)):
                spare = pool.slots
                made |= dict(zip(layers, link_of(shape, places, spare, self.counts.device), strict=True))
        return made

    def share(self, linked: float) -> None:
        """Of the absent experts of a step let the GPU fetch this part, where it can; from the next launch on."""
        self.mailbox.state[2].fill_(round(1024 * linked))

    def foresee(self, experts: int, named: int = NAMED, part: int = PART) -> None:
        """Before a layer asks for them fetch one of `part` absent experts, up to that many, where that can be, and have
        the threads call up to `named` others into their caches; from the next launch on."""
        self.mailbox.state[3].fill_(experts)
        self.mailbox.state[10].fill_(min(named, MOST_NAMES))
        self.mailbox.state[11].fill_(part)

    @property
    def threads(self) -> _cpu.ExpertThreads:
        """The threads that compute absent experts."""
        assert self._threads is not None, "closed"
        return self._threads

    def of(self, experts: arch.Experts) -> tuple[Slots, Away]:
        """A layer's slots, and how its other experts are reached."""
        index = next(i for i, layer in enumerate(self.layers) if layer is experts)
        away = Away(index, self.mailbox, self.counts[index], self.links.get(index), self.stream)
        return self.residents.slots(index), away

    def awake(self) -> Awake:
        """Inside, steps may be launched; they are waited for before the end. Raises MachineError if one went wrong."""
        return self._awake

    def close(self) -> None:
        """End the threads. No step may follow."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
