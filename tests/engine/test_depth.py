"""Choosing the depth: costs are learned, and the plan follows what they and the acceptance promise."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from jubako.engine.depth import HOPE, Acceptance, Costs, best_plan


def costs_of(first: float, column: float, draft_pass: float) -> Costs:
    """Steps that take `first` and `column` for each further column."""
    costs = Costs()
    for _ in range(200):
        for columns in range(1, 17):
            costs.learn(columns, first + column * (columns - 1), 1, draft_pass)
    return costs


def learned(rate: float) -> Acceptance:
    """A sequence whose drafts are right that often, of either proposer."""
    acceptance = Acceptance(6)
    for each in (*acceptance.layer, *acceptance.suffix):
        each.trials, each.right = 1e9, 1e9 * rate
    return acceptance


def test_costs_become_what_was_measured() -> None:
    costs = costs_of(10, 2, 0.5)
    assert costs.step(1, 0) == pytest.approx(10, rel=0.02)
    assert costs.step(4, 3) == pytest.approx(17.5, rel=0.02)


def test_unknown_widths_lie_between_their_neighbours() -> None:
    costs = Costs()
    costs.learn(1, 10, 0, 0)
    costs.learn(5, 18, 0, 0)
    assert costs.step(3, 0) == pytest.approx(14)
    assert costs.step(8, 0) > costs.step(5, 0)


def test_expected_tokens() -> None:
    acceptance = Acceptance(3)
    for rate, alpha in zip(acceptance.layer, (0.8, 0.5, 0.5), strict=True):
        rate.trials, rate.right = 1e9, 1e9 * alpha
    assert acceptance.tokens("layer", 3, 0) == pytest.approx([1 + 0.8, 1 + 0.8 + 0.4, 1 + 0.8 + 0.4 + 0.2])


@pytest.mark.parametrize(
    ("column", "draft_pass", "rate", "proposer"),
    [
        (0.0, 0.1, 0.9, "suffix"),  # equally good: the one that costs nothing
        (10.0, 1.0, 0.3, "none"),  # a column costs as much as a step
        (5.0, 5.0, 0.95, "suffix"),
    ],
)
def test_the_plan_is_the_best_rate(column: float, draft_pass: float, rate: float, proposer: str) -> None:
    plan = best_plan(costs_of(10, column, draft_pass), learned(rate), 6, 6, 8, 1)
    assert plan.proposer == proposer


def test_depth_follows_acceptance_and_falls_with_company() -> None:
    costs = costs_of(10, 1, 0.3)
    depths = [best_plan(costs, learned(rate), 6, 0, 0, 1).depth for rate in (0.05, 0.4, 0.6, 0.9)]
    assert depths == sorted(depths) and depths[0] == 0 and depths[-1] >= 4
    costs = costs_of(10, 3, 0.1)
    alone, together = (best_plan(costs, learned(0.7), 3, 0, 0, sequences).depth for sequences in (1, 4))
    assert together < alone


@pytest.mark.parametrize(("column", "deepest"), [(10.0, 0), (0.5, 6)])
def test_what_plain_steps_cost_is_found_out(column: float, deepest: int) -> None:
    """From nothing known on: a step over boxes takes 14 ms and 10 for each further column, one on a card 0.5."""
    costs, acceptance, rng, depths = Costs(), learned(0.6), np.random.default_rng(0), []
    for _ in range(60):
        depth = best_plan(costs, acceptance, 6, 0, 0, 1).depth
        kept = int(np.argmin(np.append(rng.random(depth) < 0.6, False)))
        costs.learn(1 + depth, 14 + column * depth, depth, 0.5 * depth)
        acceptance.learn_layer(depth, kept)
        depths.append(depth)
    assert max(depths[-20:]) <= deepest and (deepest == 0 or min(depths[-20:]) >= 2)


def alphas(acceptance: Acceptance) -> list[float]:
    """Of the places, from the expected tokens."""
    tokens = [1.0, *acceptance.tokens("layer", 3, 0)]
    gains = [b - a for a, b in pairwise(tokens)]
    return [gains[0], gains[1] / gains[0], gains[2] / gains[1]]


def test_acceptance_is_learned_and_hope_returns() -> None:
    acceptance = Acceptance(3)
    assert alphas(acceptance) == pytest.approx([HOPE] * 3)
    for _ in range(100):
        acceptance.learn_layer(3, 1)
    first, second, third = alphas(acceptance)
    assert first > 0.95 and second < 0.1 and third == pytest.approx(second)  # the third was never reached
    for _ in range(300):
        acceptance.learn_layer(1, 1)
    assert alphas(acceptance) == pytest.approx([first] * 3, abs=0.03)


def test_a_suffix_is_learned_by_the_length_of_its_match() -> None:
    acceptance = Acceptance(0)
    short, long = (acceptance.tokens("suffix", 1, match)[0] for match in (3, 20))
    assert short < long
    for _ in range(50):
        acceptance.learn_suffix(3, 4, 4)
        acceptance.learn_suffix(20, 4, 0)
    assert acceptance.tokens("suffix", 1, 3)[0] > 1.9 and acceptance.tokens("suffix", 1, 20)[0] < 1.1
