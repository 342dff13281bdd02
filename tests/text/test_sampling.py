"""The sampler against a plain one, against the probabilities it should have, and against hand-made penalties."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jubako.core import SamplingParams
from jubako.errors import JubakoError, RequestError
from jubako.text.sampling import Sampler, largest_ids, uniforms


def plain_distribution(logits: np.ndarray, params: SamplingParams) -> list[tuple[int, float]]:
    """(token, probability) of all tokens that may be drawn, likeliest first: the definitions, one after another."""
    order = sorted((i for i in range(len(logits)) if logits[i] > -np.inf), key=lambda i: (-logits[i], i))
    peak = float(logits[order[0]])
    weights = {i: math.exp((float(logits[i]) - peak) / params.temperature) for i in order}
    if params.top_k:
        order = order[: params.top_k]
    total = math.fsum(weights[i] for i in order)
    kept, reached = [], 0.0
    for i in order:
        if not kept or reached < params.top_p * total:
            kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p * weights[kept[0]]]
    total = math.fsum(weights[i] for i in kept)
    return [(i, weights[i] / total) for i in kept]


def plain_race(distribution: list[tuple[int, float]], seed: int, position: int) -> list[tuple[float, int]]:
    """(time, token), the winner first."""
    ids = np.array([token for token, _ in distribution])
    draws = uniforms(seed, position, ids).tolist()
    return sorted((-math.log(u) / p, token) for u, (token, p) in zip(draws, distribution, strict=True))


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 20, 3000]),
    top_p=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(-5, 2**70),
)


@given(PARAMS, st.integers(0, 2**32), st.sampled_from([1, 3, 63, 64, 700, 2000]), st.booleans(), st.integers(0, 2**40))
@settings(max_examples=250, deadline=None)
def test_agrees_with_the_plain_sampler(params: SamplingParams, data: int, size: int, ties: bool, position: int) -> None:
    random = np.random.default_rng(data)
    logits = (random.standard_normal(size) * 3).astype(np.float32)
    if ties:
        logits = np.round(logits)
    logits[random.random(size) < 0.1] = -np.inf
    logits[random.integers(size)] = 1
    token = Sampler(params).sample(logits, position)
    assert params.seed is not None
    race = plain_race(plain_distribution(logits, params), params.seed, position)
    # Runners within rounding of each other may both win.
    assert token in {runner for time, runner in race if time <= race[0][0] * (1 + 1e-6)}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=6),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=8, top_p=0.9, min_p=0.1),
    ],
)
@pytest.mark.parametrize("seed", [0, 12345])
def test_frequencies_are_the_probabilities(params: SamplingParams, seed: int) -> None:
    logits = np.array([0.5, -1.0, 2.0, 1.5, -np.inf, 0.0, 1.0, -0.5, 2.0, 0.2, -2.0, 0.7], np.float32)
    draws = 20_000
    sampler = Sampler(SamplingParams(**{**vars(params), "seed": seed}))
    counts = np.bincount([sampler.sample(logits, position) for position in range(draws)], minlength=len(logits))
    expected = np.zeros(len(logits))
    for token, probability in plain_distribution(logits, params):
        expected[token] = probability * draws
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    degrees = int(possible.sum()) - 1
    # Wilson and Hilferty: beyond 4 standard deviations lies less than one sampler in ten thousand.
    limit = degrees * (1 - 2 / (9 * degrees) + 4 * math.sqrt(2 / (9 * degrees))) ** 3
    assert chi_square < limit


def test_uniforms_are_functions_of_seed_position_and_token() -> None:
    ids = np.arange(25)
    values = np.array([[uniforms(seed, position, ids) for position in range(20)] for seed in range(40)])
    assert len(np.unique(values)) == values.size and values.min() > 0 and values.max() < 1
    histogram = np.histogram(values, bins=20, range=(0, 1))[0]
    assert float(((histogram - 1000) ** 2 / 1000).sum()) < 50
    for axis in range(3):
        rolled = np.roll(values, 1, axis)
        assert abs(np.corrcoef(values.ravel(), rolled.ravel())[0, 1]) < 0.03
    # splitmix64 with state 0 gives 0xE220A8397B1DCDAF, the published first value; written out once more here.
    mask = 2**64 - 1

    def mix(state: int) -> int:
        z = (state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF
    start = mix((mix(7) + 3 * 0x9E3779B97F4A7C15) & mask)
    number = mix((start + 5 * 0x9E3779B97F4A7C15) & mask)
    assert uniforms(7, 3, np.array([5]))[0] == ((number >> 11) + 0.5) / 2**53


def test_similar_distributions_mostly_give_the_same_token() -> None:
    """Agreement is at least (1-d)/(1+d) for a total variation distance d, in any order of the tokens."""
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(50).astype(np.float32) * 2
    other = logits + rng.standard_normal(50).astype(np.float32) * 0.4
    p, q = np.exp(logits) / np.exp(logits).sum(), np.exp(other) / np.exp(other).sum()
    distance = float(np.abs(p - q).sum()) / 2
    sampler = Sampler(SamplingParams(temperature=1.0, seed=5))
    same = np.mean([sampler.sample(logits, i) == sampler.sample(other, i) for i in range(4000)])
    assert same > (1 - distance) / (1 + distance) - 0.03


def test_the_same_seed_gives_the_same_text_and_no_seed_a_new_one() -> None:
    logits = np.random.default_rng(0).standard_normal((50, 300)).astype(np.float32)

    def run(params: SamplingParams) -> tuple[list[int], int]:
        sampler = Sampler(params)
        return [sampler.sample(row, position) for position, row in enumerate(logits)], sampler.seed

    first, seed = run(SamplingParams(temperature=1.0))
    second, other = run(SamplingParams(temperature=1.0))
    assert seed != other and first != second
    assert run(SamplingParams(temperature=1.0, seed=seed)) == (first, seed)


def test_the_draw_does_not_depend_on_what_was_sampled_before() -> None:
    logits = np.zeros(100, np.float32)
    params = SamplingParams(temperature=1.0, seed=3)
    sampler = Sampler(params)
    forward = [sampler.sample(logits, position) for position in range(20)]
    assert [sampler.sample(logits, position) for position in reversed(range(20))] == forward[::-1]


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    logits = np.array([1, 3, -np.inf, 3, 2], np.float32)
    assert Sampler(SamplingParams()).sample(logits, 0) == 1
    assert logits.tolist() == [1, 3, -math.inf, 3, 2]


@given(st.lists(st.sampled_from([-np.inf, -2.0, 0.0, 0.5, 3.0]), min_size=1, max_size=400), st.integers(1, 500))
@settings(deadline=None)
def test_largest_ids(values: list[float], count: int) -> None:
    logits = np.array(values, np.float32)
    expected = sorted((i for i in range(len(values)) if values[i] > -np.inf), key=lambda i: (-values[i], i))
    assert largest_ids(logits, count).tolist() == expected[:count]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_numbers_are_an_error(temperature: float, bad: float) -> None:
    logits = np.array([0.0, bad, 5.0], np.float32)
    with pytest.raises(JubakoError, match="position 17"):
        Sampler(SamplingParams(temperature=temperature)).sample(logits, 17)
    with pytest.raises(JubakoError, match="position 17"):
        Sampler(SamplingParams(temperature=temperature)).sample(np.full(3, -np.inf, np.float32), 17)


def test_the_smallest_temperature_is_greedy_and_stays_finite() -> None:
    logits = np.array([60000.0, -60000.0, 60001.0], np.float32)
    for temperature in (1e-300, 1e-30, 1e-6):
        assert Sampler(SamplingParams(temperature=temperature, seed=1)).sample(logits, 0) == 2


def _penalised(params: SamplingParams, prompt: list[int], text: list[int], logits: list[float]) -> list[float]:
    sampler = Sampler(params, prompt)
    for token in text:
        sampler.accept(token)
    values: list[float] = sampler._penalties.apply(np.array(logits, np.float32)).tolist()
    return values


def test_penalties_by_hand() -> None:
    logits = [2.0, -2.0, 1.0, 4.0, -math.inf, 0.5]
    repetition = SamplingParams(repetition_penalty=2.0)
    assert _penalised(repetition, [0, 1, 0], [3, 4], logits) == [1.0, -4.0, 1.0, 2.0, -math.inf, 0.5]
    # The prompt counts for repetition only.
    both = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    assert _penalised(both, [0, 1, 0], [3, 3, 5], logits) == [2.0, -2.0, 1.0, 2.75, -math.inf, -0.25]
    every = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=-0.25)
    assert _penalised(every, [0], [3, 3, 1], logits) == [1.0, -4.25, 1.0, 1.25, -math.inf, 0.5]
    assert _penalised(SamplingParams(), [0], [1], logits) == logits


def test_penalties_of_many_tokens_and_a_growing_table() -> None:
    random = np.random.default_rng(1)
    logits = random.standard_normal(5000).astype(np.float32)
    text = random.integers(0, 5000, 9000).tolist()
    values = _penalised(SamplingParams(frequency_penalty=1.0), [], text, logits.tolist())
    np.testing.assert_array_equal(
        np.array(values, np.float32), logits - np.bincount(text, minlength=5000).astype(np.float32)
    )


def test_penalties_change_the_choice_and_not_the_logits() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=1.5))
    logits = np.array([1.0, 2.0, 1.5], np.float32)
    chosen = []
    for position in range(3):
        chosen.append(sampler.sample(logits, position))
        sampler.accept(chosen[-1])
    assert chosen == [1, 2, 0] and logits.tolist() == [1.0, 2.0, 1.5]


def test_penalised_ids_must_be_in_the_vocabulary() -> None:
    with pytest.raises(RequestError, match="99"):
        Sampler(SamplingParams(repetition_penalty=1.1), [99]).sample(np.zeros(5, np.float32), 0)


def test_a_full_vocabulary_takes_a_millisecond() -> None:
    logits = np.random.default_rng(0).standard_normal(248_320).astype(np.float32) * 3
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=1))
    sampler.sample(logits, 0)
    spent = []
    for position in range(30):
        start = time.thread_time()
        sampler.sample(logits, position)
        spent.append(time.thread_time() - start)
    assert sorted(spent)[5] < 1e-3


@pytest.mark.parametrize("case", range(40))
def test_the_largest_logits_are_enough_for_top_k(case: int) -> None:
    """In whatever order they come; where more could be needed nothing is chosen."""
    rng = np.random.default_rng(case)
    params = SamplingParams(
        temperature=float(rng.choice([0.3, 1.0, 2.0])),
        top_k=int(rng.integers(1, 12)),
        top_p=float(rng.choice([0.5, 0.9, 1.0])),
        min_p=float(rng.choice([0.0, 0.1])),
        seed=case,
    )
    logits = np.round(rng.standard_normal(300) * 4, int(rng.choice([0, 6]))).astype(np.float32)
    if case % 5 == 0:
        logits[10:] = -np.inf
    ids = np.argpartition(-logits, 11)[:12]
    sampler = Sampler(params)
    got = sampler.sample_largest(ids, logits[ids], 7)
    falling = np.sort(logits)[::-1]
    tied = falling[params.top_k - 1] == falling[params.top_k]
    barred = falling[params.top_k] == -np.inf
    assert got == (None if tied or barred or params.top_k == 12 else sampler.sample(logits, 7))


def test_what_needs_all_logits_says_so() -> None:
    ids, logits = np.arange(8), np.arange(8, dtype=np.float32)
    for params in (
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=8),
        SamplingParams(top_k=3),
        SamplingParams(temperature=1.0, top_k=3, presence_penalty=0.5),
    ):
        assert Sampler(params).sample_largest(ids, logits, 0) is None
    params = SamplingParams(temperature=1.0, top_k=3)
    assert Sampler(params, bias=[(1, 2.0)]).sample_largest(ids, logits, 0) is None
    logits[5] = np.nan
    assert Sampler(params).sample_largest(ids, logits, 0) is None
