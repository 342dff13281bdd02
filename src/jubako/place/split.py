"""Which layers lie on which card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import MachineError

NOTHING = (float("inf"), float("inf"))


@dataclass(frozen=True)
class LayerCost:
    """A layer, or what lies beside the layers: bytes on a card, and seconds of a step on a card of speed 1."""

    bytes: int
    seconds: float


def split(
    layers: Sequence[LayerCost],
    rooms: Sequence[int],
    speeds: Sequence[float],
    first: LayerCost = LayerCost(0, 0.0),
    last: LayerCost = LayerCost(0, 0.0),
) -> list[range]:
    """A run of layers for each card, at least one: all fits, and the busiest card has as little to do as can be.

    Of such splits it is the one whose step takes least time.

    rooms: bytes of each card; speeds: of each, relative to one of them; first and last: what lies on the first card and
    on the last beside its layers. Raises MachineError where it does not fit, with what is missing.
    """
    count, cards = len(layers), len(rooms)
    if count < cards:
        raise MachineError(f"{count} layers can't be spread over {cards} cards; name fewer with --gpus")
    # best[card][end]: (the busiest card's time, all cards' time), and where the card's run starts
    best = [[(NOTHING, 0)] * (count + 1) for _ in range(cards + 1)]
    best[0][0] = ((0.0, 0.0), 0)
    for card in range(cards):
        extra = [cost for cost, at in ((first, 0), (last, cards - 1)) if at == card]
        for end in range(card + 1, count + 1 - (cards - 1 - card)):
            size, time = sum(cost.bytes for cost in extra), sum(cost.seconds for cost in extra) / speeds[card]
            for start in range(end - 1, card - 1, -1):
                size, time = size + layers[start].bytes, time + layers[start].seconds / speeds[card]
                if size > rooms[card]:
                    break
                busiest, total = best[card][start][0]
                best[card + 1][end] = min(best[card + 1][end], ((max(busiest, time), total + time), start))
    if best[cards][count][0] == NOTHING:
        needed = sum(cost.bytes for cost in (*layers, first, last))
        raise MachineError(
            f"the layers and their state take {needed / 1e9:.1f} GB and do not fit on {cards} cards with "
            f"{', '.join(f'{room / 1e9:.1f}' for room in rooms)} GB free"
        )
    runs, end = [], count
    for card in range(cards, 0, -1):
        start = best[card][end][1]
        runs.append(range(start, end))
        end = start
    return runs[::-1]
