"""A network on one card, or on several: by layers, or every layer on two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...arch.network import Network
from ...ops.gpu.boxes import Boxes
from ...ops.gpu.matrix import Source
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.peer_pool import CardsPool
from ...ops.gpu.state import StatePool
from .cards import open_cards
from .cards_tensor import open_twins


def lay_out(
    network: Network,
    devices: Sequence[torch.device],
    runs: Sequence[range] | None,
    source: Source | Sequence[Source] | None,
    boxes: Sequence[Boxes] = (),
    **options: Any,
) -> tuple[list[GpuOps], StatePool | CardsPool]:
    """The cards that a prompt passes through, the last of which has the head; and the memory of sequences on all.

    runs: the layers of each device; None: all on the only one, or every layer on both. boxes: of each device, where not
    all experts are to lie there. options: of `GpuOps`.
    """
    if runs is None and len(devices) > 1:
        head, twins = open_twins(network, devices, source, **options)
        cards, pools = [head], [ops.pool for ops in (*twins, head)]
    else:
        cards = open_cards(network, devices, runs or [range(len(network.layers))], source, boxes=boxes, **options)
        pools = [ops.pool for ops in cards]
    return cards, pools[0] if len(pools) == 1 else CardsPool(pools)
