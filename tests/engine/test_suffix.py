"""The suffix index against a plain search, and what it proposes."""

from __future__ import annotations

import numpy as np
import pytest

from jubako.engine.suffix import CANDIDATES, LONGEST, SHORTEST, SuffixIndex


def plain(ids: list[int], count: int) -> tuple[int, list[int]]:
    """The same by looking everywhere."""
    end = len(ids) - 1
    best, place, seen = 0, -1, 0
    for candidate in range(end - 1, SHORTEST - 2, -1):
        length = 0
        while length < LONGEST and candidate >= length and ids[candidate - length] == ids[end - length]:
            length += 1
        seen += length >= SHORTEST
        if length >= SHORTEST and length > best and seen <= CANDIDATES:
            best, place = length, candidate
    line = list(ids)
    for i in range(count if best else 0):
        line.append(line[place + 1 + i])
    return best, line[len(ids) :]


@pytest.mark.parametrize("seed", range(6))
def test_finds_what_a_plain_search_finds(seed: int) -> None:
    """Texts of few different tokens, with copies of longer stretches, grown token by token or at once."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 3 + seed, 60).tolist()
    for _ in range(6):
        start = int(rng.integers(len(text) - 20))
        text += text[start : start + 20] + rng.integers(0, 3 + seed, 5).tolist()
    index = SuffixIndex(text[:40])
    for end in range(40, len(text)):
        index.extend([text[end]])
        assert index.propose(7) == plain(text[: end + 1], 7)
        if end % 20 == 0:
            assert SuffixIndex(text[: end + 1]).propose(7) == index.propose(7)


def test_a_loop_goes_on() -> None:
    assert SuffixIndex([9, 1, 2, 1, 2, 1, 2]).propose(5) == (4, [1, 2, 1, 2, 1])


@pytest.mark.parametrize("ids", [[], [1], [1, 2], [1, 2, 3], [0, 0], [1, 2, 3, 4, 1, 2]])
def test_nothing_that_repeats_gives_nothing(ids: list[int]) -> None:
    assert SuffixIndex(ids).propose(3) == (0, [])
