"""Whether two cards decode faster with half of every layer each: by what an exchange between them takes, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...arch.network import Network
from ...errors import MachineError
from ...ops.gpu.ops import index_ratios
from ...ops.gpu.peer import Passage
from ...ops.gpu.peer_exchange import Block, Exchange
from ...ops.gpu.peer_shard import shard
from ...ops.gpu.state import StatePool
from .cards_plan import bytes_of

EXCHANGES = 64  # of a measurement


def halves_fit(
    network: Network, rooms: Sequence[int], *, kv_bits: int, sequences: int, tokens: int, context: int
) -> None:
    """Raise MachineError unless two cards with so much room hold half of all layers and of the head each.

    The second also has the whole head, for prompts, and the draft layer.
    """
    for card, room in enumerate(rooms):
        half, _ = shard(network, card, lambda tensor: torch.empty(0))  # no bytes are read for it
        ratios, meta = index_ratios(half), torch.device("meta")
        state = StatePool(half.config, ratios, sequences, tokens, context, kv_bits, meta, False)
        tables = sum(bytes_of(layer.ngram.table) for layer in half.layers if layer.ngram is not None)
        needed = bytes_of([half.embed, half.layers, half.head_mix, half.output]) - tables + state.nbytes()
        if card == 1:
            needed += bytes_of([network.output, network.head_mix])
            if network.draft is not None:
                ratio = index_ratios(network)[-1:]
                drafts = StatePool(network.config, ratio, sequences, tokens, context, kv_bits, meta, True, None)
                needed += bytes_of(network.draft) + bytes_of(network.embed) + drafts.nbytes()
        if needed > room:
            raise MachineError(
                f"half of every layer and their state take {needed / 1e9:.1f} GB of card {card}, which has "
                f"{room / 1e9:.1f} GB free; split the layers between the cards instead"
            )


def seconds_gained(network: Network, devices: Sequence[torch.device], bandwidth: float) -> float:
    """Of a step of one token by halves, against all layers one after the other; negative where it takes longer.

    bandwidth: of each card's memory, bytes/s.
    """
    chosen = network.config.experts_used / network.config.experts
    halved = float(bytes_of(network.output))
    for layer in network.layers:
        routed = bytes_of([layer.experts.gate, layer.experts.up, layer.experts.down])
        halved += bytes_of([layer.mixer, layer.experts]) - (1 - chosen) * routed
    return halved / 2 / bandwidth - 2 * len(network.layers) * exchange_seconds(devices, network.config.hidden)


def exchange_seconds(devices: Sequence[torch.device], hidden: int) -> float:
    """Of an exchange of one token's sums between two cards within a graph; infinite where they have no peer access."""
    first, second = devices
    exchange = Exchange([Passage(first, second), Passage(second, first)], hidden)
    if not exchange.words:
        return float("inf")
    lane: Any = torch.cuda.Stream(first)  # type: ignore[no-untyped-call]
    here: Any = torch.cuda.Stream(second)  # type: ignore[no-untyped-call]
    on = (lambda: torch.cuda.stream(lane), lambda: torch.cuda.stream(here))
    blocks = []
    for device in devices:
        part, streams = torch.zeros(1, hidden, device=device), torch.zeros(1, 4, hidden, device=device)
        blocks.append(Block(part, streams, torch.zeros(1, 4, device=device), None, True))

    def work() -> None:
        lane.wait_stream(here)
        exchange.begin(on)
        for _ in range(EXCHANGES):
            exchange.mixed(blocks, on)
        here.wait_stream(lane)

    with torch.cuda.device(first):
        memory = torch.cuda.MemPool()
    with torch.cuda.device(second):
        work()
        torch.cuda.synchronize(first)
        torch.cuda.synchronize(second)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=here), torch.cuda.use_mem_pool(memory, first):
            work()
        times = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000 / EXCHANGES)
    return float(min(times))
