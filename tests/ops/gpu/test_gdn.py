"""The gated delta net's kernels against the reference: steps of any width, columns taken back, prompts."""

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
from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.gdn import gdn_columns, settle
from jubako.ops.gpu.gdn_chunk import gdn_prompt
from jubako.ops.gpu.state import GdnMemory

EPS = 1e-6
PROMPT = 2e-3  # a prompt's products keep eleven bits of each factor


@dataclass
class Case:
    """A layer with random small weights and the raw projections of a sequence, for both sides."""

    weights: Any
    reference_weights: Any
    inputs: list[torch.Tensor]
    state: reference.GdnState
    memory: GdnMemory
    device: torch.device

    def step(self, parts: list[Part], rows: list[int]) -> torch.Tensor:
        """One step on rows of the inputs."""
        table = torch.from_numpy(step_table(parts)).to(self.device)
        projected = tuple(x[rows].to(self.device) for x in self.inputs)
        columns = Columns.of_step(table, len(rows))
        return plain(gdn_columns(self.weights, projected, self.memory, columns, EPS))

    def expected(self, rows: slice) -> torch.Tensor:
        return reference.gdn(self.reference_weights, *(x[rows] for x in self.inputs), self.state, EPS)


def case(rng: np.random.Generator, device: torch.device, tokens: int, key_heads: int = 2, heads: int = 6, dim: int = 32,
         slots: int = 2) -> Case:  # fmt: skip
    sizes = config(gdn_key_heads=key_heads, gdn_value_heads=heads, gdn_dim=dim)
    channels = sizes.gdn_channels
    small = {
        "conv": twin(normal(rng, channels, 4)),
        "dt_bias": twin(normal(rng, heads)),
        "a": -torch.exp(twin(normal(rng, heads))),
        "norm": twin(normal(rng, dim)),
    }
    turned = small["conv"].t().contiguous()
    inputs = [
        twin(normal(rng, tokens, channels)),
        twin(normal(rng, tokens, heads * dim)),
        twin(normal(rng, tokens, heads)),
        twin(normal(rng, tokens, heads, scale=2.0)),
    ]
    return Case(
        SimpleNamespace(**{name: value.to(device) for name, value in (small | {"conv": turned}).items()}),
        SimpleNamespace(**small),
        inputs,
        reference.GdnState.empty(sizes),
        GdnMemory.empty(sizes, slots, device),
        device,
    )


def near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((actual.cpu() - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize("sizes", [(2, 4, 32), (1, 1, 16)])
def test_columns_equal_the_reference(
    rng: np.random.Generator, device: torch.device, sizes: tuple[int, int, int]
) -> None:
    both = case(rng, device, 7, *sizes)
    position = pending = parity = 0
    for width in (1, 3, 1, 2):
        rows = list(range(position, position + width))
        got = both.step([Part(rows, 1, position, pending, parity)], rows)
        assert near(got, both.expected(slice(position, position + width)))
        position, pending, parity = position + width, width, parity ^ 1
    settle(both.memory, 1, pending, parity)
    assert near(both.memory.memory[1], both.state.memory)
    assert not both.memory.memory[0].any()


def test_taken_back_columns_leave_no_trace(rng: np.random.Generator, device: torch.device) -> None:
    """Five columns of which two are kept, then the others again: the bits of single columns."""
    both = case(rng, device, 7, 1, 2, 16)
    single = [both.step([Part([t], 0, t, min(t, 1), t & 1)], [t]) for t in range(7)]
    first = both.step([Part([0] * 5, 1, 0, 0, 0)], [0, 1, 6, 5, 4])
    assert torch.equal(first[0], single[0][0]) and torch.equal(first[1], single[1][0])
    rest = both.step([Part([0] * 5, 1, 2, 2, 1)], [2, 3, 4, 5, 6])
    assert torch.equal(rest, torch.cat(single[2:]))


def test_sequences_in_one_step_do_not_meet(rng: np.random.Generator, device: torch.device) -> None:
    both = case(rng, device, 8, 1, 2, 16)
    alone = both.step([Part([0] * 3, 0, 0, 0, 0)], [0, 1, 2])
    other = both.step([Part([0] * 2, 1, 0, 0, 0)], [5, 6])
    fresh = case(np.random.default_rng(20261130), device, 8, 1, 2, 16)
    together = fresh.step([Part([0] * 2, 1, 0, 0, 0), Part([0] * 3, 0, 0, 0, 0)], [5, 6, 0, 1, 2])
    assert torch.equal(together, torch.cat([other, alone]))


@pytest.mark.parametrize("cut", [[100], [17, 64, 9]])
def test_prompts_equal_the_reference(rng: np.random.Generator, device: torch.device, cut: list[int]) -> None:
    both = case(rng, device, sum(cut) + 1, 1, 2, 16)
    start = 0
    for tokens in cut:
        rows = slice(start, start + tokens)
        ids = torch.zeros(tokens, dtype=torch.int32, device=device)
        projected = tuple(x[rows].to(device) for x in both.inputs)
        got = gdn_prompt(both.weights, projected, both.memory, Columns.of_prompt(ids, 1, start), EPS)
        assert near(got.plain(), both.expected(rows), PROMPT)
        start += tokens
    assert near(both.memory.memory[1], both.state.memory, PROMPT)
    got = both.step([Part([0], 1, start, 0, 0)], [start])  # a step goes on from there
    assert near(got, both.expected(slice(start, start + 1)), PROMPT)


def test_equal_keys_stay_stable(rng: np.random.Generator, device: torch.device) -> None:
    """A token repeated all through a chunk: the triangular system is as badly scaled as it gets; the
    rounding of a key counts with every token."""
    both = case(rng, device, 64, 1, 1, 16)
    for x in both.inputs:
        x[:] = x[0].clone()
    both.inputs[2][:] = 9.0
    both.inputs[3][:] = -9.0  # full correction, hardly any decay
    ids = torch.zeros(64, dtype=torch.int32, device=device)
    got = gdn_prompt(both.weights, tuple(x.to(device) for x in both.inputs), both.memory,
                     Columns.of_prompt(ids, 0, 0), EPS)  # fmt: skip
    assert near(got.plain(), both.expected(slice(0, 64)), 5e-3)
