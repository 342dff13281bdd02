"""`Foresight`: absent experts that the next layer will probably choose, fetched before it does.

    layer n    mixed, routed ─► ring ─► fetch ─► experts in slots ─► collect ─► layer n+1 … ─► ring
                  └─► the next router reads the streams as they are ─► name ─► fetch ──────────┘

The lower line is a stream of its own: the link works while the CPU computes and the next layer attends. What was named
in vain costs time of the link alone. Two layers' experts have room, in turns.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

from .away import AHEAD
from .experts import Beside, Experts, Routed
from .hyper import hyper_mix
from .launch import COLUMNS, power_of_two, without_overlap
from .link import fetch_ahead
from .route import route_experts

FIRST_LAYERS = 2  # of a step, whose graph is its own and starts first: nothing may be under way at its end


@triton.jit
def foresee_kernel(ids, slots, uses, state, foreseen, USES: tl.constexpr, MOST: tl.constexpr):
    """One program: the first absent of ids [uses], each once, as many as `state` says: foreseen [0] how many, then
    which."""
    use = tl.arange(0, USES)
    inside = use < uses
    id = tl.load(ids + use, mask=inside, other=-1)
    absent = (id >= 0) & (tl.load(slots + use, mask=inside, other=0) < 0)
    same = (id[:, None] == id[None, :]) & absent[:, None] & absent[None, :]
    earliest = tl.min(tl.where(same, use[None, :], USES), axis=1)
    fresh = absent & (earliest == use)
    order = tl.cumsum(fresh.to(tl.int32), axis=0) - 1
    count = tl.minimum(tl.minimum(tl.sum(fresh.to(tl.int32), axis=0), tl.load(state + 3)), MOST)
    tl.store(foreseen + 1 + order, id, mask=fresh & (order < count))
    tl.store(foreseen, count)
    tl.store(state + 4, tl.load(state + 4) + count)


def foresee(routed: Routed, experts: Experts) -> None:
    """Of what the router says of a layer, those experts that are to come before it asks for them."""
    assert experts.away is not None and experts.away.link is not None
    slots = routed.slots_in(experts.routed.table)
    foresee_kernel[(1,)](
        routed.ids, slots, slots.numel(), experts.away.mailbox.state, experts.away.link.foreseen,
        USES=power_of_two(slots.numel()), MOST=AHEAD, num_warps=4, **without_overlap(slots.device),
    )  # fmt: skip


class Foresight:
    """layers: prepared layers (`weights.Layer`) in their order."""

    def __init__(self, layers: Sequence[Any], device: torch.device) -> None:
        self.layers, self._device = layers, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._numbers = {id(layer.experts): number for number, layer in enumerate(layers)}
        self._begun: int | None = None  # the layer whose experts may come

    def beside(self, experts: Any, streams: torch.Tensor, chosen: int) -> Beside | None:
        """Before a layer asks for `chosen` experts of each token: wait for those that may have come, and name the next
        layer's, by the streams [T, S, H] to which this layer's experts are not added yet. None for prompts."""
        if len(streams) > COLUMNS or experts.away is None:
            return None
        if self._begun is not None and self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        number = self._numbers.get(id(experts), len(self.layers)) + 1
        came, self._begun = self._begun == number - 1, None
        after = self.layers[number] if number < len(self.layers) and number != FIRST_LAYERS else None
        link = None if after is None or after.experts.away is None else after.experts.away.link
        if after is None or link is None:
            return Beside(came, lambda: False, lambda: None)
        with self._other():
            mixed, _ = hyper_mix(streams, after.hc_ffn, fine=False)
            foresee(route_experts(after.experts, mixed, chosen), after.experts)
            named = None if self._stream is None else self._stream.record_event()

        def fetch() -> bool:
            with self._other():
                fetch_ahead(link, after.experts.routed)
            self._begun = number
            return True

        def wait() -> None:
            if named is not None:
                torch.cuda.current_stream(self._device).wait_event(named)

        return Beside(came, fetch, wait)

    def _other(self) -> AbstractContextManager[Any]:
        """Inside, work goes to the other stream, after what was given to this one."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)
