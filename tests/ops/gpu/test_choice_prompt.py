"""The choice of blocks for a prompt's queries: against a plain sort, and which kernels it takes at which depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.jit import JITFunction

from jubako.ops.gpu import choice_prompt
from jubako.ops.gpu.choice_prompt import GROUP, choose_blocks, choose_prompt, score_prompt
from jubako.ops.gpu.columns import Columns
from jubako.ops.gpu.quick import kind_of
from jubako.ops.gpu.state import PAGE, AttentionMemory

RATIO, HEADS, DIM = 4, 4, 16


def memory(rng: np.random.Generator, device: torch.device, pages: int, narrow: bool = True) -> AttentionMemory:
    """One layer whose index keys are random, its pages in falling order."""
    keys = torch.from_numpy(rng.standard_normal((pages, PAGE // RATIO, DIM)).astype(np.float32))
    table = torch.arange(pages - 1, -1, -1, dtype=torch.int32)[None].to(device)
    none = torch.zeros(0, device=device)
    return AttentionMemory(table, none, none, none, keys.to(device, torch.float16 if narrow else torch.float32), RATIO)


@pytest.mark.parametrize("narrow", [True, False])
def test_scores_and_the_best_of_each_group(rng: np.random.Generator, device: torch.device, narrow: bool) -> None:
    """In tiles, in programs of several queries, which see different blocks."""
    here, tokens, start = memory(rng, device, 5, narrow), 70, 230
    q = torch.from_numpy(rng.standard_normal((tokens, HEADS, DIM)).astype(np.float32)).to(device)
    width = -(-(start + tokens) // RATIO // 16) * 16
    scores, tops = (torch.full((tokens, n), 7.0, device=device) for n in (width, width // GROUP))
    score_prompt(q, here, 0, start, scores, tops)
    keys = here.pooled.flip(0).reshape(-1, DIM)[:width].float()
    wanted = torch.einsum("thd,bd->htb", q, keys).clamp_min(0).sum(0) / DIM**0.5
    seen = torch.arange(width, device=device) < ((start + torch.arange(tokens, device=device) + 1) // RATIO)[:, None]
    assert torch.allclose(scores[seen], wanted[seen], atol=2e-2 if narrow else 1e-4)
    best = torch.where(seen, scores, -1.0).view(tokens, -1, GROUP).amax(2)
    assert torch.equal(tops[best >= 0], best[best >= 0])


@pytest.mark.parametrize("kind", ["spread", "ties", "clustered", "zeros"])
def test_the_best_are_chosen_in_rising_order(rng: np.random.Generator, device: torch.device, kind: str) -> None:
    """More groups than the budget, and more candidates than are looked at together; of equal scores the lower block."""
    budget, blocks, width = 32, 2500, 2512
    scores = np.abs(rng.standard_normal((4, width))).astype(np.float32)
    if kind == "ties":
        scores = np.floor(scores * 3)
    elif kind == "clustered":  # the best share few groups
        scores[:, 1000:1040] += 5
    elif kind == "zeros":
        scores[:] = 0
        scores[2, 77] = 2.0
    scores[:, blocks:] = -1
    given = torch.from_numpy(scores).to(device)
    tops = given.view(4, -1, GROUP).amax(2)
    chosen = torch.empty(4, budget, dtype=torch.int32, device=device)
    counts = torch.empty(4, dtype=torch.int32, device=device)
    positions = torch.full((4,), blocks * RATIO, dtype=torch.int32, device=device)
    choose_prompt(given, tops, torch.empty_like(given, dtype=torch.int32), positions, chosen, counts, RATIO)
    for row in range(4):
        best = np.argsort(-scores[row], kind="stable")[:budget]
        assert counts[row] == budget
        assert chosen[row].tolist() == sorted(best.tolist())


def test_pieces_of_a_prompt_are_chosen_alike(
    rng: np.random.Generator, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many queries are scored at a time."""
    here, tokens, start, budget = memory(rng, device, 8), 60, 400, 12
    q = torch.from_numpy(rng.standard_normal((tokens, HEADS, DIM)).astype(np.float32)).to(device)
    columns = Columns.of_prompt(torch.zeros(tokens, dtype=torch.int32, device=device), 0, start)
    found = []
    for most in (1 << 20, 16 * 600):
        monkeypatch.setattr(choice_prompt, "SCORE_BYTES", most)
        blocks = torch.full((tokens, budget), -1, dtype=torch.int32, device=device)
        chosen = torch.zeros(tokens, dtype=torch.int32, device=device)
        choose_blocks(q, here, columns, blocks, chosen)
        assert (chosen == budget).all()
        found.append(blocks)
    assert torch.equal(*found)


class Noted:
    """Stands for a kernel; notes what its compiled form would depend on."""

    def __init__(self, kernel: Any) -> None:
        jit = isinstance(kernel, JITFunction)
        names = [p.name for p in kernel.params if p.do_not_specialize] if jit else kernel.kwargs["do_not_specialize"]
        self.names, self.free, self.kinds = kernel.arg_names, set(names or ()), set[Any]()

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **named: Any) -> None:
            given = zip(self.names, args, strict=False)
            self.kinds.add((*(kind_of(value) for name, value in given if name not in self.free), *named.items()))

        return launch


def test_every_depth_takes_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that depended on where a chunk begins would be compiled in the middle of a long prompt."""
    noted = [Noted(getattr(choice_prompt, name)) for name in ("_score_prompt", "_select")]
    monkeypatch.setattr(choice_prompt, "_score_prompt", noted[0])
    monkeypatch.setattr(choice_prompt, "_select", noted[1])
    none = torch.zeros(0)
    here = AttentionMemory(torch.zeros(1, 4096, dtype=torch.int32), none, none, none, torch.zeros(1, 16, 128), RATIO)
    blocks, chosen = torch.zeros(4096, 512, dtype=torch.int32), torch.zeros(4096, dtype=torch.int32)
    q = torch.zeros(4096, 4, 128)
    for start in (0, 4096, 24576, 61440, 122880, 229376, 253952):
        choose_blocks(q, here, Columns.of_prompt(torch.zeros(4096, dtype=torch.int32), 0, start), blocks, chosen)
    assert [len(kernel.kinds) for kernel in noted] == [1, 1]
