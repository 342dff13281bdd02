"""The instructions whose order or choice is part of the specification, against plain rereadings of the rule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from jubako.arch.config import Config
from jubako.arch.network import Indexer
from jubako.arch.reference import (
    AttentionCache,
    Reference,
    hyper_combine,
    index_select,
    index_update,
    rope,
    route,
    sparse_attention,
)
from jubako.arch.reference.basics import causal_conv
from jubako.arch.weights import load_network
from jubako.errors import RequestError
from jubako.files import open_model

RATIO = 4


@pytest.fixture(scope="module")
def config(tiny: Path) -> Config:
    """The tiny model with a budget of five blocks of four tokens."""
    return replace(Config.from_files(open_model(tiny / "tiny-bf16.gguf")), index_budget=5 * RATIO)


def indexer(config: Config, weight: float = 1.0) -> Indexer:
    """Only the norms are read by index_update and index_select."""
    gamma = torch.full((config.index_dim,), weight)
    return Indexer(q=gamma, k=gamma, q_norm=gamma, k_norm=gamma)  # type: ignore[arg-type]


def scores_of(config: Config, q: torch.Tensor, raw: torch.Tensor, position: int) -> list[float]:
    """Scores of the complete blocks for the query at `position`, block by block and head by head."""
    frequencies = config.rope_frequencies()

    def prepared(x: torch.Tensor, place: int) -> torch.Tensor:
        x = x / (x.square().mean() + config.eps).sqrt()
        return rope(x[None, None], torch.tensor([place]), frequencies)[0, 0]

    result = []
    for block in range((position + 1) // RATIO):
        key = prepared(raw[block * RATIO : (block + 1) * RATIO].mean(dim=0), block * RATIO)
        heads = q.view(config.index_heads, config.index_dim)
        result.append(sum(max(0.0, float(prepared(h, position) @ key)) for h in heads) / math.sqrt(config.index_dim))
    return result


@pytest.mark.parametrize("parts", [[60], [1] * 60, [3, 4, 5, 20, 1, 27]])
def test_selection_follows_the_rule(config: Config, parts: list[int]) -> None:
    torch.manual_seed(1)
    raw = torch.randn(60, config.index_dim)
    q = torch.randn(60, config.index_heads * config.index_dim)
    cache, position = AttentionCache(config, RATIO), 0
    for size in parts:
        index_update(indexer(config), raw[position : position + size], cache, position)
        blocks, counts = index_select(indexer(config), q[position : position + size], cache, position)
        assert blocks.dtype == counts.dtype == torch.int32 and blocks.shape == (size, 5)
        for row in range(size):
            scores = scores_of(config, q[position + row], raw, position + row)
            wanted = sorted(sorted(range(len(scores)), key=lambda b: (-scores[b], b))[:5])
            assert blocks[row].tolist() == wanted + [-1] * (5 - len(wanted))
            assert int(counts[row]) == len(wanted)
        position += size
    assert len(cache.pooled) == 15 and len(cache.unpooled) == 0


def test_ties_go_to_the_lower_block(config: Config) -> None:
    """All scores are zero, then two equal keys compete for the last place."""
    cache = AttentionCache(config, RATIO)
    index_update(indexer(config), torch.zeros(40, config.index_dim), cache, 0)
    blocks, _ = index_select(indexer(config), torch.randn(1, config.index_heads * config.index_dim), cache, 39)
    assert blocks.tolist() == [[0, 1, 2, 3, 4]]
    cache.pooled[[2, 5, 7, 8, 9, 6]] = torch.ones(config.index_dim)
    cache.frequencies = torch.zeros_like(cache.frequencies)
    blocks, _ = index_select(indexer(config), torch.ones(1, config.index_heads * config.index_dim), cache, 39)
    assert blocks.tolist() == [[2, 5, 6, 7, 8]]


def test_attention_sees_chosen_blocks_and_the_tail(config: Config) -> None:
    torch.manual_seed(2)
    cache = AttentionCache(config, RATIO)
    cache.keys, cache.values = torch.randn(2, 43, config.kv_heads, config.head_dim)
    q, gate = torch.randn(1, config.heads, config.head_dim), torch.randn(1, config.heads * config.head_dim)
    blocks, counts = torch.tensor([[1, 7, -1]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    tokens = [4, 5, 6, 7, 28, 29, 30, 31, 40, 41]  # position 41: ten complete blocks, then a tail of two
    out = sparse_attention(q, gate, cache, blocks, counts, 41).view(config.heads, config.head_dim)
    dense = sparse_attention(q, gate, cache, blocks, torch.tensor([-1]), 41)
    assert torch.equal(dense, sparse_attention(q, gate, cache, None, None, 41))
    for head in range(config.heads):
        kv = head // (config.heads // config.kv_heads)
        weights = (cache.keys[tokens, kv] @ q[0, head] / math.sqrt(config.head_dim)).softmax(dim=0)
        expected = weights @ cache.values[tokens, kv] * torch.sigmoid(gate.view(config.heads, -1)[head])
        assert torch.allclose(out[head], expected, atol=1e-5)


def test_route_orders_by_probability_and_ties_by_index() -> None:
    ids, weights = route(torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0], [0.0] * 5]), 3)
    assert ids.tolist() == [[1, 3, 2], [0, 1, 2]]
    e = math.exp(-1)
    assert weights[0].tolist() == pytest.approx([1 / (2 + e), 1 / (2 + e), e / (2 + e)])
    assert weights[1].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("dilation", [1, 3])
def test_convolution_looks_back(dilation: int) -> None:
    """Tap k looks back (K-1-k) * dilation tokens; the past is carried on whatever the split."""
    torch.manual_seed(3)
    x, taps = torch.randn(20, 5), torch.randn(5, 4)
    expected = torch.zeros(20, 5)
    for t in range(20):
        for k in range(4):
            back = t - (3 - k) * dilation
            if back >= 0:
                expected[t] += taps[:, k] * x[back]
    past = torch.zeros(3 * dilation, 5)
    parts = [causal_conv(part, taps, past, dilation) for part in x.split([1, 2, 6, 11])]
    assert torch.allclose(torch.cat(parts), expected, atol=1e-5)
    assert torch.equal(past, x[-3 * dilation :])


def test_combine_works_in_place() -> None:
    streams, inject, out = torch.zeros(2, 3, 4), torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.ones(2, 4)
    hyper_combine(streams, inject, out)
    assert streams[:, :, 0].tolist() == inject.tolist()


def test_what_can_not_be_asked(tiny: Path) -> None:
    reference = Reference(load_network(open_model(tiny / "tiny-bf16.gguf")))
    for token in (-1, 1024, 2**40):
        with pytest.raises(RequestError, match=f"token id {token} is outside the vocabulary of 1024"):
            reference.logits([1, token])
    with pytest.raises(RequestError, match="no draft layer"):
        reference.draft_logits(np.arange(4))
