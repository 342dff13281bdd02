"""Layers over cards: everything fits, and the busiest card has as little to do as can be."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.errors import MachineError
from jubako.place.split import LayerCost, split

GB = 10**9


def test_equal_cards_get_equal_halves() -> None:
    layers = [LayerCost(GB, 1.0)] * 48
    assert split(layers, [40 * GB] * 2, [1.0, 1.0]) == [range(24), range(24, 48)]


def test_the_head_counts_for_the_last_card() -> None:
    layers = [LayerCost(GB, 1.0)] * 10
    assert split(layers, [40 * GB] * 2, [1.0, 1.0], last=LayerCost(GB, 4.0)) == [range(7), range(7, 10)]


def test_a_card_twice_as_fast_gets_twice_as_many() -> None:
    layers = [LayerCost(GB, 1.0)] * 12
    assert split(layers, [40 * GB] * 2, [2.0, 1.0]) == [range(8), range(8, 12)]


def test_room_comes_before_time() -> None:
    layers = [LayerCost(GB, 1.0)] * 12
    assert split(layers, [3 * GB, 9 * GB], [1.0, 1.0]) == [range(3), range(3, 12)]
    with pytest.raises(MachineError, match=r"take 12\.0 GB and do not fit on 2 cards with 3\.0, 8\.0 GB free"):
        split(layers, [3 * GB, 8 * GB], [1.0, 1.0])


def test_more_cards_than_layers() -> None:
    with pytest.raises(MachineError, match="2 layers can't be spread over 3 cards"):
        split([LayerCost(1, 1.0)] * 2, [9] * 3, [1.0] * 3)


COSTS = st.builds(LayerCost, st.integers(1, 9), st.integers(1, 9).map(float))


@given(st.lists(COSTS, min_size=3, max_size=8), st.lists(st.integers(5, 40), min_size=3, max_size=3), COSTS, COSTS)
def test_no_other_split_is_better(layers: list[LayerCost], rooms: list[int], first: LayerCost, last: LayerCost) -> None:
    """Against all of them."""
    speeds = [1.0, 2.0, 3.0]

    def busiest(cuts: tuple[int, ...]) -> float | None:
        times = []
        for card, (start, end) in enumerate(zip((0, *cuts), (*cuts, len(layers)), strict=True)):
            own = layers[start:end] + [first] * (card == 0) + [last] * (card == 2)
            if sum(cost.bytes for cost in own) > rooms[card]:
                return None
            times.append(sum(cost.seconds for cost in own) / speeds[card])
        return max(times)

    possible = [time for cuts in combinations(range(1, len(layers)), 2) if (time := busiest(cuts)) is not None]
    if not possible:
        with pytest.raises(MachineError, match="do not fit"):
            split(layers, rooms, speeds, first, last)
        return
    runs = split(layers, rooms, speeds, first, last)
    assert [index for run in runs for index in run] == list(range(len(layers)))
    found = busiest((runs[1].start, runs[2].start))
    assert found is not None and found == pytest.approx(min(possible))
