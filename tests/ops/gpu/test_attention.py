"""Attention, its caches and the choice of blocks against the reference: steps, prompts, several sequences."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from quantised import plain
from sizes import config, normal, twin

from jubako.arch import reference
from jubako.arch.config import Config
from jubako.ops.gpu import attention_prompt
from jubako.ops.gpu.attention import sparse_attention
from jubako.ops.gpu.choice_prompt import GROUP, choose_prompt
from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.index import BIN_BITS, BINS, LOWEST
from jubako.ops.gpu.launch import COLUMNS
from jubako.ops.gpu.prepare import Prepared, Rope, attention_prepare
from jubako.ops.gpu.select import Selector
from jubako.ops.gpu.state import PAGE, AttentionMemory

CUDA = torch.cuda.is_available()
RATIO, CONTEXT = 4, 4096 if CUDA else 128
LONG = 2500 if CUDA else 66  # a prompt beyond the budget and over a page's border
SMALL = {
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 32,
    "rope_dims": 16,
    "index_heads": 1,
    "index_dim": 16,
    "index_budget": 32,
}
REAL = {
    "heads": 24,
    "kv_heads": 2,
    "head_dim": 256,
    "rope_dims": 64,
    "index_heads": 4,
    "index_dim": 128,
    "index_budget": 2048,
}


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """The interpreter takes a millisecond a program."""
    if device.type == "cpu":
        monkeypatch.setattr("jubako.ops.gpu.attention.SPLITS", 4)


@dataclass
class Case:
    """A layer with random norms and the raw projections of a sequence; two slots whose pages interleave."""

    sizes: Config
    weights: Any
    reference_weights: Any
    inputs: list[torch.Tensor]
    cache: reference.AttentionCache
    memory: AttentionMemory
    selector: Selector
    device: torch.device

    def prepare(self, rows: list[int], columns: Columns) -> Prepared:
        sizes = self.sizes
        rope = Rope(sizes.rope_frequencies().to(self.device), sizes.rope_magnitude)
        projected = tuple(x[rows].to(self.device) for x in self.inputs)
        return attention_prepare(
            self.weights,
            projected,
            self.memory,
            columns,
            rope,
            sizes.heads,
            sizes.kv_heads,
            sizes.index_heads,
            sizes.eps,
        )

    def run(self, rows: list[int], columns: Columns) -> torch.Tensor:
        ready = self.prepare(rows, columns)
        assert ready.index is not None
        blocks, chosen = self.selector(ready.index, self.memory, columns)
        return plain(sparse_attention(ready.queries, ready.gate, self.memory, columns, blocks, chosen))

    def step(self, slot: int, position: int, rows: list[int]) -> torch.Tensor:
        table = torch.from_numpy(step_table([Part(rows, slot, position, 0, 0)])).to(self.device)
        return self.run(rows, Columns.of_step(table, len(rows), early=True))

    def prompt(self, slot: int, position: int, rows: list[int]) -> torch.Tensor:
        ids = torch.zeros(len(rows), dtype=torch.int32, device=self.device)
        return self.run(rows, Columns.of_prompt(ids, slot, position))

    def expected(self, rows: slice) -> torch.Tensor:
        q, k, v, index_q, index_k = (x[rows] for x in self.inputs)
        weights, position = self.reference_weights, rows.start
        queries, gate = reference.attention_prepare(weights, q, k, v, self.cache, position)
        reference.index_update(weights.indexer, index_k, self.cache, position)
        blocks, counts = reference.index_select(weights.indexer, index_q, self.cache, position)
        return reference.sparse_attention(queries, gate, self.cache, blocks, counts, position)


def case(rng: np.random.Generator, device: torch.device, tokens: int, bits: int = 16, **changes: Any) -> Case:
    sizes = config(**{**(REAL if CUDA else SMALL), **changes})
    norms = {name: 1 + 0.2 * twin(normal(rng, sizes.head_dim)) for name in ("q_norm", "k_norm")}
    index = {name: 1 + 0.2 * twin(normal(rng, sizes.index_dim)) for name in ("q_norm", "k_norm")}
    inputs = [
        twin(normal(rng, tokens, size))
        for size in (
            sizes.heads * 2 * sizes.head_dim,
            sizes.kv_heads * sizes.head_dim,
            sizes.kv_heads * sizes.head_dim,
            sizes.index_heads * sizes.index_dim,
            sizes.index_dim,
        )
    ]
    pages = CONTEXT // PAGE
    table = torch.stack([torch.arange(0, 2 * pages, 2), torch.arange(2 * pages - 1, 0, -2)]).int().to(device)
    here = SimpleNamespace(
        **{name: x.to(device) for name, x in norms.items()},
        indexer=SimpleNamespace(**{name: x.to(device) for name, x in index.items()}),
    )
    return Case(
        sizes,
        here,
        SimpleNamespace(**norms, indexer=SimpleNamespace(**index)),
        inputs,
        reference.AttentionCache(sizes, RATIO),
        AttentionMemory.empty(sizes, RATIO, bits, table, 2 * pages),
        Selector(sizes.index_blocks(RATIO), CONTEXT // RATIO, COLUMNS, device),
        device,
    )


def near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, ties: int = 0) -> bool:
    """Whether rows are alike, but for `ties` of them, where block scores nearly tie; a few of a long prompt."""
    error = (actual - expected).abs().max(dim=1).values / expected.abs().max()
    return int((~(error <= tolerance)).sum()) <= (len(error) // 50 if len(error) > 100 else ties)


@pytest.mark.parametrize(("bits", "tolerance", "long"), [(16, 2e-3, LONG if CUDA else 38), (8, 3e-2, LONG)])
def test_a_prompt_and_steps_equal_the_reference(
    rng: np.random.Generator, device: torch.device, bits: int, tolerance: float, long: int
) -> None:
    both = case(rng, device, long + 14, bits)
    assert near(both.prompt(1, 0, list(range(long))), both.expected(slice(0, long)), tolerance)
    for start, end in ((long, long + 1), (long + 1, long + 5), (long + 5, long + 8)):
        assert near(both.step(1, start, list(range(start, end))), both.expected(slice(start, end)), tolerance)
    rest, ties = slice(long + 8, long + 14), 2 if bits == 8 else 0
    # with 8 bits a prompt's blocks are scored by halves of the queries: two rows have another block, by a near tie
    assert near(both.prompt(1, long + 8, list(range(long + 8, long + 14))), both.expected(rest), tolerance, ties)


@pytest.mark.parametrize("gathered", [False, True])
def test_a_prompt_of_many_heads(
    rng: np.random.Generator, device: torch.device, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve query heads a key/value head leave rows of a tile unused; pieces, blocks chosen in the second."""
    monkeypatch.setattr(attention_prompt, "DENSE", 0 if gathered else 1 << 20)
    both = case(rng, device, 40, 8, heads=12, kv_heads=1, index_budget=16)
    for start, end in ((0, 17), (17, 40)):
        assert near(both.prompt(1, start, list(range(start, end))), both.expected(slice(start, end)), 3e-2)


def test_taken_back_columns_leave_no_trace(rng: np.random.Generator, device: torch.device) -> None:
    both = case(rng, device, 30, index_budget=8)
    both.prompt(0, 0, list(range(13)))
    single = [both.step(0, t, [t]) for t in range(13, 18)]
    both.prompt(1, 0, list(range(13)))
    first = both.step(1, 13, [13, 14, 29, 28, 27])
    assert torch.equal(first[:2], torch.cat(single[:2]))
    assert torch.equal(both.step(1, 15, [15, 16, 17]), torch.cat(single[2:]))


def test_sequences_in_one_step_do_not_meet(rng: np.random.Generator, device: torch.device) -> None:
    both = case(rng, device, 30, index_budget=12)
    both.prompt(0, 0, list(range(18)))
    both.prompt(1, 0, list(range(25)))
    parts = [Part([0] * 2, 1, 25, 0, 0), Part([0], 0, 18, 0, 0)]
    table = torch.from_numpy(step_table(parts)).to(device)
    together = both.run([25, 26, 18], Columns.of_step(table, 3))
    alone = [both.step(1, 25, [25, 26]), both.step(0, 18, [18])]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("step", [True, False])
@pytest.mark.parametrize("kind", ["spread", "ties", "zeros", "few"])
def test_the_best_blocks_are_chosen_exactly(
    rng: np.random.Generator, device: torch.device, kind: str, step: bool
) -> None:
    """On scores of the kernel's own making: top `budget`, of equal scores the lower block."""
    budget, blocks = 8, 100
    selector = Selector(budget, 128, COLUMNS, device)
    scores = np.abs(rng.standard_normal((3, 128))).astype(np.float32)
    if kind == "ties":
        scores = np.floor(scores * 2)
    elif kind == "zeros":
        scores[:, :] = 0
        scores[1, 77] = 2.0
    elif kind == "few":
        blocks = 5
    positions = torch.full((3,), blocks * RATIO, dtype=torch.int32, device=device)
    choice = selector.columns
    choice.scores[:3] = torch.from_numpy(scores).to(device)
    chosen = torch.empty(3, budget, dtype=torch.int32, device=device)
    counts = torch.empty(3, dtype=torch.int32, device=device)
    if step:
        if blocks > budget:
            keys = ((scores[:, :blocks].view(np.int32) >> BIN_BITS) - LOWEST).clip(0, BINS - 1)
            bins = torch.from_numpy(keys).long().to(device)
            choice.counts[:3].scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.int32))
        choice.choose(positions, RATIO, chosen, counts)
    else:
        seen = torch.where(torch.arange(128, device=device) < blocks, choice.scores[:3], -1.0)
        tops = seen.view(3, -1, GROUP).amax(2)
        choose_prompt(choice.scores, tops, choice.candidates, positions, chosen, counts, RATIO)
    for row in range(3):
        order = np.argsort(-scores[row, :blocks], kind="stable")[:budget]
        assert int(counts[row]) == len(order)
        assert sorted(chosen[row, : len(order)].tolist()) == sorted(order.tolist())
    assert not choice.counts.any() and not choice.arrived.any()
