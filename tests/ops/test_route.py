"""Choosing experts and tokens."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import assert_near, normal, twin

from jubako import _cpu
from jubako.arch import reference


@pytest.mark.parametrize(("experts", "k"), [(512, 10), (256, 10), (12, 3), (17, 17), (1, 1), (31, 8)])
def test_route_equals_the_reference(isa: str, rng: np.random.Generator, experts: int, k: int) -> None:
    logits = normal(rng, 41, experts, scale=4.0)
    ids, weights = _cpu.route(logits, k)
    expected_ids, expected_weights = reference.route(twin(logits), k)
    assert (ids == expected_ids.numpy()).all()
    assert_near(weights, expected_weights)


def test_ties_go_to_the_lower_expert(isa: str) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1, [7, 33, 12]] = 1.0
    logits[2] = np.float32(-0.0)
    logits[2, 20:] = 0.0  # equal to the negative zeros below
    ids, weights = _cpu.route(logits, 4)
    assert ids.tolist() == [[0, 1, 2, 3], [7, 12, 33, 0], [0, 1, 2, 3]]
    assert np.allclose(weights.sum(axis=1), 1)


def test_route_survives_what_is_no_number(isa: str) -> None:
    logits = np.full((2, 20), -np.inf, np.float32)
    logits[0, 3] = np.nan
    logits[0, 5] = 1.0
    logits[1] = np.nan
    ids, _ = _cpu.route(logits, 6)
    assert ids.tolist() == [[5, 0, 1, 2, 4, 6], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 248_320])
def test_argmax(isa: str, rng: np.random.Generator, size: int) -> None:
    values = normal(rng, 5, size)
    values[3] = np.round(values[3])  # many ties
    values[4] = -np.inf
    values[2, size // 2] = np.nan
    expected = [int(np.nanargmax(row)) if not np.isnan(row).all() else 0 for row in values]
    assert _cpu.argmax(values).tolist() == expected


def test_k_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="k must lie"):
        _cpu.route(np.zeros((1, 4), np.float32), 5)
