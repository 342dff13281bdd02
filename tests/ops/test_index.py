"""The indexer against the reference: pooled keys, choice of blocks, ties, taking tokens back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sizes import assert_near, config, normal, pieces, same_bits, twin

from jubako import _cpu
from jubako.arch import reference
from jubako.arch.config import Config, RopeScaling
from jubako.arch.weights import Indexer


@dataclass
class Case:
    """An indexer with random norms, as kernel and as reference, and a sequence to read."""

    sizes: Config
    ratio: int
    kernel: Any
    indexer: Indexer
    q: np.ndarray
    raw: np.ndarray

    def state(self) -> Any:
        return _cpu.AttentionState(1024, 1, 32, 8, self.ratio, self.sizes.index_dim)

    def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray, Any]:
        """Blocks and counts of all queries, read `chunk` tokens at a time."""
        state, results = self.state(), []
        for part in pieces(len(self.q), chunk):
            self.kernel.update(self.raw[part], state, part.start)
            results.append(self.kernel.select(self.q[part], state, part.start))
        blocks, counts = (np.concatenate(x) for x in zip(*results, strict=True))
        return blocks, counts, state

    def expected(self) -> tuple[torch.Tensor, torch.Tensor, reference.AttentionCache]:
        cache = reference.AttentionCache(self.sizes, self.ratio)
        reference.index_update(self.indexer, twin(self.raw), cache, 0)
        return *reference.index_select(self.indexer, twin(self.q), cache, 0), cache


def case(rng: np.random.Generator, tokens: int, ratio: int = 4, budget: int = 16, **changes: Any) -> Case:
    sizes = config(index_budget=budget * ratio, **changes)
    heads, dim = sizes.index_heads, sizes.index_dim
    q_norm, k_norm = normal(rng, dim), normal(rng, dim)
    none: Any = twin(np.empty((0, 0), np.float32))
    indexer: Any = Indexer(none, none, twin(q_norm), twin(k_norm))  # type: ignore[arg-type]
    rope = _cpu.Rope(sizes.rope_frequencies().numpy(), sizes.rope_magnitude, 1024)
    kernel = _cpu.Indexer(q_norm, k_norm, heads, ratio, budget, sizes.eps, rope)
    return Case(sizes, ratio, kernel, indexer, normal(rng, tokens, heads * dim), normal(rng, tokens, dim))


@pytest.mark.parametrize(
    ("tokens", "ratio", "budget", "changes"),
    [
        (300, 4, 16, {}),
        (70, 4, 64, {}),  # budget larger than the blocks
        (130, 2, 5, {"index_heads": 1, "index_dim": 16}),
        (150, 8, 3, {"index_heads": 3, "index_dim": 48}),
        (260, 4, 7, {"index_heads": 7, "index_dim": 128, "rope_dims": 64}),
        (90, 1, 11, {"index_heads": 5}),
        (200, 4, 16, {"rope_scaling": RopeScaling("yarn", 4.0, 64, 1.14)}),
    ],
)
def test_equals_the_reference(
    isa: str, rng: np.random.Generator, tokens: int, ratio: int, budget: int, changes: dict[str, Any]
) -> None:
    both = case(rng, tokens, ratio, budget, **changes)
    blocks, counts, state = both.read(chunk=37)
    expected_blocks, expected_counts, cache = both.expected()
    assert len(cache.pooled) == tokens // ratio
    pooled = np.stack([state.pooled(block) for block in range(tokens // ratio)])
    assert_near(pooled, cache.pooled, 1e-5)
    assert (counts == expected_counts.numpy()).all()
    assert (blocks == expected_blocks.numpy()).all()


def test_ties_of_zero_go_to_the_lower_block(isa: str, rng: np.random.Generator) -> None:
    both = case(rng, 240, budget=13)
    both.raw[:] = -np.abs(both.raw)  # keys that point away from the queries below score exactly zero
    both.raw[[8, 9, 10, 11, 100, 101, 102, 103]] *= -1  # but for blocks 2 and 25
    both.q[:] = 0.25 * np.abs(both.q)
    both.sizes.rope_frequencies().zero_()
    rope = _cpu.Rope(np.zeros(both.sizes.rope_dims // 2, np.float32), 1.0, 1024)
    ones = np.ones(both.sizes.index_dim, np.float32)
    both.kernel = _cpu.Indexer(ones, ones, both.sizes.index_heads, 4, 13, 1e-6, rope)
    blocks, counts, _ = both.read(chunk=240)
    assert counts[-1] == 13
    assert blocks[-1].tolist() == [*range(12), 25]
    assert blocks[4 * 15 - 1].tolist() == [*range(13)]


def test_equal_scores_go_to_the_lower_block(isa: str, rng: np.random.Generator) -> None:
    both = case(rng, 200, budget=9)
    both.raw[:] = np.tile(normal(rng, 4, both.sizes.index_dim), (50, 1))
    rope = _cpu.Rope(np.zeros(both.sizes.rope_dims // 2, np.float32), 1.0, 1024)
    ones = np.ones(both.sizes.index_dim, np.float32)
    both.kernel = _cpu.Indexer(ones, ones, both.sizes.index_heads, 4, 9, 1e-6, rope)
    blocks, counts, _ = both.read(chunk=50)
    assert (blocks[39:] == np.arange(9)).all() and (counts[39:] == 9).all()


@pytest.mark.parametrize("tokens", [37, 301])
def test_bits_do_not_depend_on_chunks(isa: str, rng: np.random.Generator, tokens: int) -> None:
    both = case(rng, tokens, budget=8)
    whole = both.read(chunk=tokens)
    for chunk in (1, 5, 64):
        other = both.read(chunk)
        assert same_bits(other[0], whole[0]) and same_bits(other[1], whole[1])
        for block in range(tokens // 4):
            assert same_bits(other[2].pooled(block), whole[2].pooled(block))


@pytest.mark.parametrize("ratio", [2, 4, 8])
@pytest.mark.parametrize("back", [1, 7, 16])
def test_tokens_can_be_taken_back(isa: str, rng: np.random.Generator, ratio: int, back: int) -> None:
    both = case(rng, 150, ratio, budget=4)
    expected = both.read(chunk=150)
    dim = both.sizes.index_dim
    state = both.state()
    position = 0
    attention = _cpu.Attention(
        normal(rng, 32), normal(rng, 32), 1, 1, 1e-6, _cpu.Rope(np.ones(1, np.float32), 1.0, 1024)
    )
    while position < 150:  # read on with wrong tokens, take them back, read the right ones
        step = min(11, 150 - position)
        for keys in (normal(rng, back, dim), both.raw[position : position + step]):
            count = len(keys)
            attention.prepare(normal(rng, count, 64), normal(rng, count, 32), normal(rng, count, 32), state, position)
            both.kernel.update(keys, state, position)
            if keys.base is not both.raw:
                state.truncate(position)
        blocks, counts = both.kernel.select(both.q[position : position + step], state, position)
        assert same_bits(blocks, expected[0][position : position + step])
        assert same_bits(counts, expected[1][position : position + step])
        position += step


def test_choice_is_exact_on_many_blocks(isa: str, rng: np.random.Generator) -> None:
    """Sorting is the plain definition; scores are taken from the kernel's own keys in float64, with a margin."""
    both = case(rng, 1023, 1, budget=100, index_heads=4, index_dim=32)
    blocks, counts, state = both.read(chunk=512)
    keys = np.stack([state.pooled(block) for block in range(1023)])
    cache = reference.AttentionCache(both.sizes, 1)
    for place in (99, 100, 101, 500, 1022):
        q = reference.rms_norm(twin(both.q[place]).view(1, 4, 32), both.indexer.q_norm, 1e-6)  # type: ignore[arg-type]
        q = cache.rotate(q, torch.tensor([place]))[0].numpy()
        scores = np.maximum(q.astype(np.float64) @ keys[: place + 1].T, 0).sum(axis=0)
        chosen, rest = blocks[place, : counts[place]], np.delete(scores, blocks[place, : counts[place]])
        assert (np.diff(chosen) > 0).all() and len(chosen) == min(place + 1, 100)
        assert len(rest) == 0 or scores[chosen].min() >= rest.max() - 1e-4


def test_misuse_is_refused(rng: np.random.Generator) -> None:
    both = case(rng, 40)
    state = both.state()
    with pytest.raises(ValueError, match="in order"):
        both.kernel.update(both.raw, state, 3)
    both.kernel.update(both.raw, state, 0)
    with pytest.raises(ValueError, match="not pooled"):
        both.kernel.select(both.q, state, 1)
    with pytest.raises(ValueError, match="context"):
        both.kernel.update(normal(rng, 1000, both.sizes.index_dim), state, 40)
    with pytest.raises(ValueError, match="another layer"):
        both.kernel.update(both.raw, _cpu.AttentionState(1024, 1, 32, 8, 8, 32), 0)
