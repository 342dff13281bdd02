"""The gated delta net against the reference: values, state, and bits whatever the chunks and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sizes import assert_near, by_chunks, config, normal, same_bits, twin

from jubako import _cpu
from jubako.arch import reference
from jubako.arch.weights import Gdn

SIZES = [(2, 6, 32, 4), (1, 5, 16, 4), (3, 3, 48, 2), (5, 35, 80, 3), (16, 48, 128, 4), (1, 2, 256, 4)]


@dataclass
class Case:
    """A layer with random weights, as kernel and as reference, and inputs for some tokens."""

    kernel: Any
    weights: Gdn
    state: reference.GdnState
    inputs: list[np.ndarray]

    def run(self, state: Any, part: slice = slice(None)) -> np.ndarray:
        result: np.ndarray = self.kernel.run(*(x[part] for x in self.inputs), state)
        return result


def case(
    rng: np.random.Generator, key_heads: int, heads: int, dim: int, taps: int, tokens: int, scale: float = 1.0
) -> Case:
    sizes = config(gdn_key_heads=key_heads, gdn_value_heads=heads, gdn_dim=dim, conv_kernel=taps)
    channels = sizes.gdn_channels
    conv, dt_bias, norm = normal(rng, channels, taps), normal(rng, heads), normal(rng, dim)
    a = -np.exp(normal(rng, heads))
    none = twin(np.empty((0, 0), np.float32))
    weights: Any = Gdn(none, none, twin(conv), twin(dt_bias), twin(a), none, none, twin(norm), none)  # type: ignore[arg-type]
    inputs = [
        normal(rng, tokens, channels, scale=scale),
        normal(rng, tokens, heads * dim),
        normal(rng, tokens, heads),
        normal(rng, tokens, heads, scale=3.0),
    ]
    kernel = _cpu.Gdn(conv, dt_bias, a, norm, key_heads, sizes.eps)
    return Case(kernel, weights, reference.GdnState.empty(sizes), inputs)


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(isa: str, rng: np.random.Generator, size: tuple[int, int, int, int]) -> None:
    both = case(rng, *size, tokens=23)
    state = both.kernel.new_state()
    for part in (slice(0, 1), slice(1, 3), slice(3, 23)):
        expected = reference.gdn(both.weights, *(twin(x[part]) for x in both.inputs), both.state)
        assert_near(both.run(state, part), expected, 1e-5)
    assert state.position == 23
    assert_near(state.memory, both.state.memory, 1e-5)
    past = size[3] - 1
    order = [(23 - past + i) % len(state.conv) for i in range(past)]
    assert same_bits(state.conv[order], both.state.conv.numpy())


@pytest.mark.parametrize("size", [(2, 6, 32, 4), (16, 48, 128, 4)])
def test_bits_do_not_depend_on_chunks_or_threads(
    isa: str, rng: np.random.Generator, size: tuple[int, int, int, int]
) -> None:
    both = case(rng, *size, tokens=37)
    whole = both.run(state := both.kernel.new_state())
    threads = _cpu.threads()
    try:
        for chunk, count in ((1, 2), (5, 1), (37, 1), (5, 3)):
            _cpu.set_threads(count)
            other = both.kernel.new_state()
            assert same_bits(by_chunks(37, chunk, lambda part, state=other: both.run(state, part)), whole)
            assert same_bits(other.memory, state.memory)
            assert same_bits(other.conv, state.conv)
    finally:
        _cpu.set_threads(threads)


def test_levels_agree_bit_for_bit(rng: np.random.Generator) -> None:
    if not _cpu.isa_supported("avx512"):
        pytest.skip("one level only")
    both = case(rng, 4, 12, 128, 4, tokens=9)
    results = []
    before = _cpu.isa()
    for level in ("avx2", "avx512"):
        _cpu.set_isa(level)
        results.append(both.run(both.kernel.new_state()))
    _cpu.set_isa(before)
    assert same_bits(*results)


def test_large_values_stay_finite(isa: str, rng: np.random.Generator) -> None:
    both = case(rng, 2, 6, 32, 4, tokens=5, scale=65504.0)
    both.inputs[2] *= 65504
    both.inputs[3] *= 65504
    expected = reference.gdn(both.weights, *(twin(x) for x in both.inputs), both.state)
    assert_near(both.run(both.kernel.new_state()), expected, 1e-4)


def test_reset_forgets(isa: str, rng: np.random.Generator) -> None:
    both = case(rng, 2, 6, 32, 4, tokens=7)
    state = both.kernel.new_state()
    first = both.run(state)
    state.reset()
    assert state.position == 0
    assert same_bits(both.run(state), first)


def test_wrong_shapes_are_refused(rng: np.random.Generator) -> None:
    both = case(rng, 2, 6, 32, 4, tokens=3)
    qkv, z, beta, alpha = both.inputs
    with pytest.raises(ValueError, match="z has size"):
        both.kernel.run(qkv, z[:2], beta, alpha, both.kernel.new_state())
    with pytest.raises(ValueError, match="another layer"):
        both.kernel.run(qkv, z, beta, alpha, case(rng, 1, 5, 16, 4, tokens=1).kernel.new_state())
    with pytest.raises(TypeError):
        both.kernel.run(qkv.astype(np.float64), z, beta, alpha, both.kernel.new_state())
