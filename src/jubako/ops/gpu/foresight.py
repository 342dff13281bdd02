"""`Foresight`: absent experts that the next layer will probably choose, fetched before it does or made ready for.

    layer n   mixed, routed ─► ask ─► experts in slots ─────────────► layer n+1 … ─► ask ─► experts in slots
                 └─► the next router reads the streams as they are ─► name                  │
                                                                       ├─► fetch ───────────┘
                                                                       └─► threads: weights into their caches

The lower lines are streams of their own: the link works while the CPU computes and the next layer attends, and the
threads read main memory when they have answered. What was named in vain costs time of those alone. Two layers' fetched
experts have room, in turns.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

from .away import AHEAD, NAMED, NAMED_COUNT, NAMED_LAYER, NAMES, first_uses
from .experts import Beside, Experts, Routed
from .hyper import hyper_mix
from .launch import COLUMNS, power_of_two
from .link import fetch_ahead
from .route import route_experts
from .target import release, target, wait

FIRST_LAYERS = 2  # of a step, whose graph is its own and starts first: nothing may be under way at its end


@triton.jit
def foresee_kernel(
    ids, slots, uses, state, foreseen, words, layer,
    USES: tl.constexpr, MOST: tl.constexpr, NAMED: tl.constexpr, NAMED_LAYER: tl.constexpr, NAMED_COUNT: tl.constexpr,
    NAMES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: the first absent of ids [uses], each once, such a part of them and as many as `state` says:
    foreseen [0] how many, then which. Those after them that the link will not bring either, once the layer asks, are
    named to the threads."""
    release(OVERLAP)
    wait(OVERLAP)
    use = tl.arange(0, USES)
    inside = use < uses
    id = tl.load(ids + use, mask=inside, other=-1)
    absent = (id >= 0) & (tl.load(slots + use, mask=inside, other=0) < 0)
    fresh, order = first_uses(id, absent, use, USES)
    found = tl.sum(fresh.to(tl.int32), axis=0)
    part = tl.maximum(tl.load(state + 11), 1)
    count = tl.minimum(tl.minimum((found + part - 1) // part, tl.load(state + 3)), MOST)
    tl.store(foreseen + 1 + order, id, mask=fresh & (order < count))
    tl.store(foreseen, count)
    tl.store(state + 4, tl.load(state + 4) + count)
    theirs = count + (((found - count) * tl.load(state + 2) + 512) >> 10)
    named = tl.minimum(found - theirs, tl.load(state + 10))
    if named > 0:
        place = order - theirs
        tl.store(words + NAMES + place, id, mask=fresh & (place >= 0) & (place < named))
        tl.store(words + NAMED_LAYER, layer)
        tl.store(words + NAMED_COUNT, named)
        number = tl.load(state + 9) + 1
        tl.store(state + 9, number)
        tl.debug_barrier()  # nothing more: whoever reads half of this guess and half of another calls some in vain
        tl.store(words + NAMED, number)


def foresee(routed: Routed, experts: Experts) -> None:
    """Of what the router says of a layer, those experts that are to come before it asks for them, and those that the
    CPU's threads may get ready for."""
    away = experts.away
    assert away is not None and away.link is not None
    slots, to, box = routed.slots_in(experts.routed.table), target(routed.ids.device), away.mailbox
    foresee_kernel[(1,)](
        routed.ids, slots, slots.numel(), box.state, away.link.foreseen, box.words, away.layer,
        USES=power_of_two(slots.numel()), MOST=AHEAD, NAMED=NAMED, NAMED_LAYER=NAMED_LAYER, NAMED_COUNT=NAMED_COUNT,
        NAMES=NAMES, OVERLAP=to.overlap, num_warps=4, **to.options,
    )  # fmt: skip


class Foresight:
    """layers: prepared layers (`weights.Layer`) in their order."""

    def __init__(self, layers: Sequence[Any], device: torch.device) -> None:
        self.layers, self._device = layers, device
        on_gpu = device.type == "cuda"
        self._naming = torch.cuda.Stream(device) if on_gpu else None
        # else few programs that copy would wait for room behind those that wait for the CPU's rows
        self._bringing = torch.cuda.Stream(device, priority=-1) if on_gpu else None
        self._numbers = {id(layer.experts): number for number, layer in enumerate(layers)}
        self._begun: int | None = None  # the layer whose experts may come

    def beside(self, experts: Any, streams: torch.Tensor, chosen: int) -> Beside | None:
        """Before a layer asks for `chosen` experts of each token: name the next layer's, by the streams [T, S, H] to
        which this layer's experts are not added yet. None for prompts."""
        if len(streams) > COLUMNS or experts.away is None:
            return None
        number = self._numbers.get(id(experts), len(self.layers)) + 1
        begun, self._begun = self._begun, None
        came = begun == number - 1
        after = self.layers[number] if number < len(self.layers) and number != FIRST_LAYERS else None
        link = None if after is None or after.experts.away is None else after.experts.away.link

        def arrive() -> None:
            if begun is not None:
                self._wait(self._bringing)

        if after is None or link is None:
            return Beside(came, arrive, _nothing, _nothing)
        with self._beside(self._naming):
            mixed, _ = hyper_mix(streams, after.hc_ffn, fine=False)
            foresee(route_experts(after.experts, mixed, chosen), after.experts)

        def fetch() -> None:
            self._begun = number
            with self._beside(self._bringing, self._naming):
                fetch_ahead(link, after.experts.routed)

        return Beside(came, arrive, fetch, lambda: self._wait(self._naming))

    def _wait(self, other: torch.cuda.Stream | None) -> None:
        """Let this stream wait for what was given to the other."""
        if other is not None:
            torch.cuda.current_stream(self._device).wait_stream(other)

    def _beside(
        self, stream: torch.cuda.Stream | None, *others: torch.cuda.Stream | None
    ) -> AbstractContextManager[Any]:
        """Inside, work goes to a stream, after what was given to this one and to the others."""
        if stream is None:
            return nullcontext()
        for other in (torch.cuda.current_stream(self._device), *others):
            if other is not None:
                stream.wait_stream(other)
        return torch.cuda.stream(stream)


def _nothing() -> None:
    pass
