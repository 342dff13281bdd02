"""Which experts are hot, and when one takes another's slot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jubako.place.heat import HALF_LIFE, Heat


def pairs(*entries: tuple[int, int]) -> np.ndarray:
    return np.array(entries, np.int32)


def test_late_uses_count_more() -> None:
    heat = Heat(1, 3, 1)
    heat.read(np.array([[100, 0, 0]], np.int32))
    heat.read(np.array([[100, int(HALF_LIFE), 0]], np.int32))
    assert heat.values[0].tolist() == pytest.approx([50, HALF_LIFE, 0])
    assert heat.order()[:2].tolist() == [[0, 1], [0, 0]]


def test_counts_may_wrap() -> None:
    heat = Heat(1, 1, 1)
    heat.read(np.array([[2**31 - 5]], np.int64).astype(np.int32))
    before = heat.values[0, 0]
    heat.read(np.array([[-(2**31) + 5]], np.int32))
    assert heat.values[0, 0] == pytest.approx(before * 0.5 ** (10 / HALF_LIFE) + 10)


def test_chance_moves_nothing() -> None:
    """Half of the experts of a flat routing have slots, and keep them; a hot one gets the coldest's."""
    rng, heat = np.random.default_rng(0), Heat(4, 64, 8)
    heat.values[:] = rng.poisson(30, (4, 64))
    everyone = np.argwhere(np.ones((4, 64), bool)).astype(np.int32)
    inside, outside = everyone[::2], everyone[1::2]
    assert heat.swaps(inside, outside, 16) == []
    heat.values[tuple(outside[9])] = 400
    [(leaves, enters)] = heat.swaps(inside, outside, 16)
    assert enters == 9 and heat.values[tuple(inside[leaves])] == heat.values[tuple(inside.T)].min()


def test_no_more_than_there_are() -> None:
    heat = Heat(1, 4, 1)
    heat.values[:] = [0, 1, 1000, 2000]
    assert heat.swaps(pairs((0, 0), (0, 1)), pairs((0, 2), (0, 3)), 16) == [(0, 1), (1, 0)]
    assert heat.swaps(pairs((0, 0), (0, 1)), pairs((0, 2), (0, 3)), 1) == [(0, 1)]
    assert heat.swaps(np.zeros((0, 2), np.int32), pairs((0, 2)), 16) == []


def test_kept_for_the_next_start(tmp_path: Path) -> None:
    heat, file = Heat(2, 3, 1), tmp_path / "use" / "some.npy"
    assert not Heat(2, 3, 1).load(file)
    heat.values[:] = [[1, 2, 3], [9, 8, 7]]
    heat.save(file)
    again = Heat(2, 3, 1)
    assert again.load(file) and np.array_equal(again.values, heat.values)
    assert not Heat(2, 4, 1).load(file)
    np.save(file, np.full((2, 3), np.nan, np.float32))
    assert not Heat(2, 3, 1).load(file)
    file.write_bytes(b"no array")
    assert not Heat(2, 3, 1).load(file)
    assert [f.name for f in file.parent.iterdir()] == ["some.npy"]
    right = np.lib.format.header_data_from_array_1_0(heat.values.astype(np.float32))
    for damaged in (b"", b"\x93NUMPY\x01\x00", right | {"shape": (1 << 42,)}, right | {"descr": "|O"}):
        if isinstance(damaged, bytes):  # as a loss of power leaves it
            file.write_bytes(damaged)
        else:
            with file.open("wb") as out:
                np.lib.format.write_array_header_1_0(out, damaged)
        assert not Heat(2, 3, 1).load(file)
