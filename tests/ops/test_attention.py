"""Attention and its cache against the reference: values, cache precision, and bits whatever the chunks and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sizes import assert_near, by_chunks, config, normal, pieces, same_bits, twin

from jubako import _cpu
from jubako.arch import reference
from jubako.arch.config import Config, RopeScaling
from jubako.arch.weights import Attention

CONTEXT = 1 << 15


@dataclass
class Case:
    """A layer with random norms, as kernel and as reference, and raw projections of a sequence."""

    sizes: Config
    kernel: Any
    weights: Attention
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def state(self, bits: int = 8, ratio: int = 0) -> Any:
        return _cpu.AttentionState(CONTEXT, self.sizes.kv_heads, self.sizes.head_dim, bits, ratio, 32 if ratio else 0)

    def prepare(self, state: Any, part: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        start = part.start or 0
        result: tuple[np.ndarray, np.ndarray] = self.kernel.prepare(
            self.q[part], self.k[part], self.v[part], state, start
        )
        return result

    def cache(self, state: Any, ratio: int = 0) -> reference.AttentionCache:
        """A reference cache with what the kernel's cache holds."""
        cache = reference.AttentionCache(self.sizes, ratio)
        cache.keys = torch.from_numpy(np.stack([state.key(cell) for cell in range(state.length)]))
        cache.values = torch.from_numpy(np.stack([state.value(cell) for cell in range(state.length)]))
        return cache


def case(rng: np.random.Generator, tokens: int, **changes: Any) -> Case:
    sizes = config(**changes)
    heads, kv_heads, dim = sizes.heads, sizes.kv_heads, sizes.head_dim
    q_norm, k_norm = normal(rng, dim), normal(rng, dim)
    none: Any = None
    weights = Attention(none, none, none, none, twin(q_norm), twin(k_norm), None, 0)  # type: ignore[arg-type]
    rope = _cpu.Rope(sizes.rope_frequencies().numpy(), sizes.rope_magnitude, CONTEXT)
    kernel = _cpu.Attention(q_norm, k_norm, heads, kv_heads, sizes.eps, rope)
    inputs = (
        normal(rng, tokens, heads * 2 * dim),
        normal(rng, tokens, kv_heads * dim),
        normal(rng, tokens, kv_heads * dim),
    )
    return Case(sizes, kernel, weights, *inputs)


def random_blocks(rng: np.random.Generator, tokens: int, position: int, ratio: int, budget: int) -> tuple[Any, Any]:
    blocks = np.full((tokens, budget), -1, np.int32)
    counts = np.zeros(tokens, np.int32)
    for t in range(tokens):
        complete = (position + t + 1) // ratio
        counts[t] = min(budget, complete)
        blocks[t, : counts[t]] = np.sort(rng.choice(complete, counts[t], replace=False)) if complete else []
    return blocks, counts


SHAPES = [
    {},
    {"heads": 5, "kv_heads": 1, "head_dim": 32, "rope_dims": 8},
    {"heads": 7, "kv_heads": 7, "head_dim": 96, "rope_dims": 32},
    {"heads": 24, "kv_heads": 2, "head_dim": 256, "rope_dims": 64},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "rope_scaling": RopeScaling("yarn", 4.0, 32, 1.14)},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_prepare_equals_the_reference(isa: str, rng: np.random.Generator, shape: dict[str, Any]) -> None:
    both = case(rng, 19, **shape)
    state, cache = both.state(bits=16), reference.AttentionCache(both.sizes, 0)
    for part in (slice(0, 1), slice(1, 19)):
        queries, gate = both.prepare(state, part)
        expected, expected_gate = reference.attention_prepare(
            both.weights, twin(both.q[part]), twin(both.k[part]), twin(both.v[part]), cache, part.start
        )
        assert_near(queries, expected)
        assert same_bits(gate, expected_gate.numpy())
    held = both.cache(state)
    assert_near(held.keys.numpy(), cache.keys, 5e-4)  # half precision
    assert_near(held.values.numpy(), cache.values, 5e-4)


def test_a_far_position_rotates_as_the_reference_does(isa: str, rng: np.random.Generator) -> None:
    """float32 angles at large positions are coarse; both must round alike."""
    both = case(rng, 1)
    rope = _cpu.Rope(both.sizes.rope_frequencies().numpy(), 1.0, 200_001)
    kernel = _cpu.Indexer(np.ones(64, np.float32), np.ones(64, np.float32), 1, 1, 1, 1e-6, rope)
    state = _cpu.AttentionState(200_001, 1, 32, 8, 1, 64)
    raw = np.zeros((200_001, 64), np.float32)
    raw[-1] = normal(rng, 64)
    kernel.update(raw, state, 0)
    ones = torch.ones(64)
    expected = reference.rope(
        reference.rms_norm(twin(raw[-1:])[:, None], ones, 1e-6), torch.tensor([200_000]), both.sizes.rope_frequencies()
    )
    assert_near(state.pooled(200_000), expected[0, 0], 1e-5)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_equals_the_reference(isa: str, rng: np.random.Generator, shape: dict[str, Any], bits: int) -> None:
    both = case(rng, 70, **shape)
    state = both.state(bits)
    queries, gate = both.prepare(state)
    result = _cpu.sparse_attention(queries, gate, state, None, None, 0)
    expected = reference.sparse_attention(twin(queries), twin(gate), both.cache(state), None, None, 0)
    assert_near(result, expected, 5e-6)


@pytest.mark.parametrize(
    ("tokens", "ratio", "budget"), [(1, 4, 8), (3, 4, 8), (70, 4, 8), (67, 2, 5), (61, 8, 3), (40, 4, 64), (41, 1, 7)]
)
@pytest.mark.parametrize("bits", [8, 16])
def test_sparse_equals_the_reference(
    isa: str, rng: np.random.Generator, tokens: int, ratio: int, budget: int, bits: int
) -> None:
    both = case(rng, tokens, heads=10, kv_heads=2)
    state = both.state(bits, ratio)
    queries, gate = both.prepare(state)
    blocks, counts = random_blocks(rng, tokens, 0, ratio, budget)
    counts[tokens // 2] = -1  # this one sees everything
    result = _cpu.sparse_attention(queries, gate, state, blocks, counts, 0)
    cache = both.cache(state, ratio)
    expected = reference.sparse_attention(twin(queries), twin(gate), cache, twin(blocks), twin(counts), 0)
    assert_near(result, expected, 5e-6)


@pytest.mark.parametrize("bits", [8, 16])
def test_many_segments_equal_the_reference(isa: str, rng: np.random.Generator, bits: int) -> None:
    both = case(rng, 2100, heads=6, kv_heads=2, head_dim=32, rope_dims=8)
    both.q *= 8  # sharp softmax: segments with very different maxima
    state = both.state(bits, 4)
    queries, gate = both.prepare(state)
    last = slice(2093, 2100)
    blocks, counts = random_blocks(rng, 7, 2093, 4, 300)
    cache = both.cache(state, 4)
    for chosen in ((None, None), (blocks, counts)):
        result = _cpu.sparse_attention(queries[last], gate[last], state, *chosen, 2093)
        wanted = [None if x is None else twin(x) for x in chosen]
        expected = reference.sparse_attention(twin(queries[last]), twin(gate[last]), cache, *wanted, 2093)
        assert_near(result, expected, 1e-5)


def test_long_dense_attention(isa: str, rng: np.random.Generator) -> None:
    """Beyond 64 segments of 256 cells the segments grow."""
    both = case(rng, 20_000, heads=2, kv_heads=1, head_dim=32, rope_dims=8)
    state = both.state(16)
    queries, gate = both.prepare(state)
    result = _cpu.sparse_attention(queries[-1:], gate[-1:], state, None, None, 19_999)
    expected = reference.sparse_attention(twin(queries[-1:]), twin(gate[-1:]), both.cache(state), None, None, 19_999)
    assert_near(result, expected, 1e-5)


@pytest.mark.parametrize("ratio", [0, 4])
def test_bits_do_not_depend_on_chunks_or_threads(isa: str, rng: np.random.Generator, ratio: int) -> None:
    tokens = 301
    both = case(rng, tokens, heads=10, kv_heads=2)
    blocks, counts = random_blocks(rng, tokens, 0, 4, 9) if ratio else (None, None)

    def read(chunk: int) -> np.ndarray:
        state = both.state(8, ratio)

        def step(part: slice) -> np.ndarray:
            queries, gate = both.prepare(state, part)
            chosen = (blocks[part], counts[part]) if ratio else (None, None)
            result: np.ndarray = _cpu.sparse_attention(queries, gate, state, *chosen, part.start)
            return result

        return by_chunks(tokens, chunk, step)

    whole = read(tokens)
    threads = _cpu.threads()
    try:
        for chunk, count in ((1, 2), (5, 1), (64, 3)):
            _cpu.set_threads(count)
            assert same_bits(read(chunk), whole)
    finally:
        _cpu.set_threads(threads)


def test_levels_agree_bit_for_bit(rng: np.random.Generator) -> None:
    if not _cpu.isa_supported("avx512"):
        pytest.skip("one level only")
    both = case(rng, 40, heads=24, kv_heads=2, head_dim=256, rope_dims=64)
    before, results = _cpu.isa(), []
    for level in ("avx2", "avx512"):
        _cpu.set_isa(level)
        state = both.state()
        results.append(_cpu.sparse_attention(*both.prepare(state), state, None, None, 0))
    _cpu.set_isa(before)
    assert same_bits(*results)


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.5 / 127 + 1e-6), (16, 2**-11)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 65504.0, 1e9, 1e30])
def test_cache_precision(isa: str, rng: np.random.Generator, bits: int, tolerance: float, scale: float) -> None:
    both = case(rng, 9)
    both.v *= np.float32(scale)
    both.v[3] = 0
    state = both.state(bits)
    both.prepare(state)
    for token in range(9):
        want = both.v[token].reshape(2, -1, 32)
        error = np.abs(state.value(token).reshape(want.shape) - want).max(axis=2)
        least = 2.0**-25 if bits == 16 else 0.0  # half precision has subnormals below 6e-5
        assert (error <= np.maximum(np.abs(want).max(axis=2) * tolerance, least)).all()


def test_tokens_can_be_taken_back(isa: str, rng: np.random.Generator) -> None:
    both = case(rng, 60)
    state = both.state()
    for part in pieces(60, 10):
        both.kernel.prepare(both.q[:16] * 3, both.k[:16] * 3, both.v[:16] * 3, state, part.start)
        state.truncate(part.start)
        queries, gate = both.prepare(state, part)
        result = _cpu.sparse_attention(queries, gate, state, None, None, part.start)
    straight = both.state()
    expected = _cpu.sparse_attention(*both.prepare(straight), straight, None, None, 0)
    assert same_bits(result, expected[50:])


def test_misuse_is_refused(rng: np.random.Generator) -> None:
    both = case(rng, 8)
    state = both.state(8, 4)
    with pytest.raises(ValueError, match="in order"):
        both.prepare(state, slice(2, 4))
    queries, gate = both.prepare(state)
    with pytest.raises(ValueError, match="own tokens"):
        _cpu.sparse_attention(queries, gate, state, None, None, 1)
    for blocks in ([[2]], [[-1]]):
        with pytest.raises(ValueError, match="not complete"):
            chosen = np.array(blocks, np.int32), np.array([1], np.int32)
            _cpu.sparse_attention(queries[:1], gate[:1], state, *chosen, 6)
    with pytest.raises(ValueError, match="beyond the row"):
        chosen = np.zeros((1, 1), np.int32), np.array([2], np.int32)
        _cpu.sparse_attention(queries[:1], gate[:1], state, *chosen, 6)
    with pytest.raises(ValueError, match="truncated"):
        state.truncate(9)
    with pytest.raises(ValueError, match="8 or 16"):
        _cpu.AttentionState(10, 1, 32, 4)
