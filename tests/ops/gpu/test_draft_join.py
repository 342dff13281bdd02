"""Streams and the embeddings of the tokens after them, normed and projected together, against plain float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from block_rows import rows_of

from jubako.arch.tensor import Tensor
from jubako.ops.gpu.columns import COUNT, IDS, POSITION, Columns, Part, step_table
from jubako.ops.gpu.draft_join import Join
from jubako.ops.gpu.guess import Choice
from jubako.ops.gpu.matrix import beside, matrix
from jubako.ops.gpu.route import largest_of
from jubako.quant import BY_NAME, decode

HIDDEN, STREAMS, VOCABULARY, EPS = 256, 2, 40, 1e-6


def tensor(name: str, rows: int, seed: int, scale: float | None = None) -> Tensor:
    raw = rows_of(name, (rows,), HIDDEN, seed)
    factor = None if scale is None else np.array([scale], np.float32)
    return Tensor(f"{name} {seed}", BY_NAME[name], (rows, HIDDEN), raw, Path(), 0, scale=factor)


def numbers(weight: Tensor) -> torch.Tensor:
    factor = 1.0 if weight.scale is None else float(weight.scale[0])
    return torch.from_numpy(decode(weight.type, weight.data).reshape(weight.shape) * factor)


class Both:
    """A join, and what it should give."""

    def __init__(self, device: torch.device, embed: str, kinds: tuple[str, str], scale: float | None = None) -> None:
        rng = np.random.default_rng(3)
        self.device, self.rows = device, tensor(embed, VOCABULARY, 1, scale)
        self.weights = [tensor(kind, HIDDEN, 2 + place) for place, kind in enumerate(kinds)]
        self.gammas = [
            torch.from_numpy(rng.uniform(0.5, 2, size).astype(np.float32)) for size in (STREAMS * HIDDEN, HIDDEN)
        ]
        self.streams = torch.from_numpy(rng.standard_normal((3, STREAMS, HIDDEN)).astype(np.float32))
        self.join = Join(
            matrix([self.rows], device), beside(self.weights, device), *(gamma.to(device) for gamma in self.gammas),
            torch.ones(1024, STREAMS, device=device), EPS,
        )  # fmt: skip

    def expected(self, ids: list[int], streams: torch.Tensor) -> torch.Tensor:
        """[T, S, H]"""
        token, wide = numbers(self.rows)[ids], streams.flatten(1)
        token = token / (token.square().mean(1, keepdim=True) + EPS).sqrt() * self.gammas[1]
        wide = wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt() * self.gammas[0]
        embedding, hidden = (numbers(weight) for weight in self.weights)
        return (token @ embedding.T)[:, None] + wide.view(-1, STREAMS, HIDDEN) @ hidden.T


def close(got: torch.Tensor, wanted: torch.Tensor, part: float = 1e-4) -> bool:
    return bool((got.cpu() - wanted).abs().max() <= part * wanted.abs().max())


CUDA = torch.cuda.is_available()
SAME = ("Q8_0", "Q8_0") if CUDA else ("Q4_0", "Q4_0")  # the interpreter takes a minute for products in tiles
KINDS = [("Q8_0", SAME, None), ("Q6_K", ("Q4_0", "Q4_0"), 3.0), ("F16", ("Q8_0", "Q4_K"), None)]


@pytest.mark.parametrize(("embed", "kinds", "scale"), [*KINDS, ("F32", ("F32", "F32"), 3.0)] if CUDA else KINDS)
def test_streams_and_embeddings_are_joined(
    device: torch.device, embed: str, kinds: tuple[str, str], scale: float | None
) -> None:
    """Streams in a row, and out of the ring that carries them."""
    both, ids = Both(device, embed, kinds, scale), [7, 39]
    table = torch.from_numpy(step_table([Part(ids, 1, 63, 0, 0)])).to(device)
    columns, streams = Columns.of_step(table, 2), both.streams[:2]
    wanted = both.expected(ids, streams)
    given = both.join.step(columns, streams.to(device))
    assert close(given, wanted, 2e-3 if kinds[0] != kinds[1] else 1e-4)
    ring = torch.zeros(2, 64, STREAMS * HIDDEN)
    ring[1, [63, 0]] = streams.flatten(1)
    again = both.join.step(columns, ring.to(device))
    assert torch.equal(again, given)


@pytest.mark.parametrize("embed", ["Q8_0", "F16"])
def test_drafts_are_the_tokens_that_join(device: torch.device, embed: str) -> None:
    """Those that a pass found likeliest, of which the second broke down; the table moves on to them."""
    both = Both(device, embed, SAME)
    parts = [Part([4, 7], 0, 8, 0, 0), Part([8], 1, 2, 0, 0), Part([9], 2, 4, 0, 0)]
    logits = torch.zeros(3, VOCABULARY, device=device)
    logits[0, 31], logits[1, 3], logits[2, 39] = 1, torch.nan, 2
    tables, drafts = [], []
    for _ in range(2):
        tables.append(torch.from_numpy(step_table(parts)).to(device))
        drafts.append(torch.zeros(15, 16, dtype=torch.int32, device=device))
    after, alone = (
        Choice(0, 0, device).following(table, draft, largest_of(logits))
        for table, draft in zip(tables, drafts, strict=True)
    )
    out = torch.full_like(both.streams, torch.nan, device=device)
    given = both.join.step(Columns.of_step(tables[0], 3), both.streams.to(device), out, after)
    assert given is out and close(out, both.expected([31, 0, 39], both.streams))
    alone.follow()
    assert torch.equal(tables[0], tables[1]) and torch.equal(drafts[0], drafts[1])
    assert tables[0][IDS, :3].tolist() == [31, 0, 39] and tables[0][POSITION, :3].tolist() == [10, 3, 5]
    assert tables[0][COUNT, :4].tolist() == [1, 1, 1, 0] and drafts[0][0, :3].tolist() == [31, -1, 39]


def test_a_prompts_tokens_join_the_same(device: torch.device) -> None:
    both, ids = Both(device, "Q8_0", ("Q8_0", "Q8_0")), [7, 0, 39]
    columns = Columns.of_prompt(torch.tensor(ids, dtype=torch.int32, device=device), 0, 5)
    joined, pending = both.join.prompt(columns, both.streams.to(device))
    assert isinstance(pending.output, torch.Tensor)
    got = joined + pending.inject[:, :, None] * pending.output[:, None]
    assert close(got, both.expected(ids, both.streams), 2e-3)
