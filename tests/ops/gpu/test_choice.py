"""The exact choice of blocks for a step's columns, where scores tie, crowd a bin, or lie outside of all bins."""

from __future__ import annotations

import pytest
import torch

from jubako.ops.gpu.choice import ColumnChoice
from jubako.ops.gpu.index import BIN_BITS, BINS, LOWEST

RATIO, BUDGET, TOKENS = 4, 48, 2
SCORES = {
    "apart": lambda x: x * 3,
    "tied": lambda x: (x * 12).round() / 4,
    "mostly zero": lambda x: (x - 0.97).clamp_min(0),
    "beyond the last bin": lambda x: x * 1e6,
    "in one bin": lambda x: 1 + x * 1e-3,
    "all alike": lambda x: x * 0 + 2,
}


@pytest.mark.parametrize(("kind", "blocks"), [(kind, 500) for kind in SCORES] + [("all alike", 1300)])
def test_best_blocks(kind: str, blocks: int, device: torch.device) -> None:
    """1,300 alike are more candidates than are looked at together."""
    scores = SCORES[kind](torch.rand(TOKENS, blocks, generator=torch.Generator().manual_seed(1)))
    choice = ColumnChoice(BUDGET, blocks, 16, device)
    choice.scores[:TOKENS] = scores
    ends = [blocks, blocks - 3]
    for t, end in enumerate(ends):
        bins = ((scores[t, :end].view(torch.int32) >> BIN_BITS) - LOWEST).clamp(0, BINS - 1)
        choice.counts[t] = torch.bincount(bins, minlength=BINS)
    chosen = torch.empty(TOKENS, BUDGET, dtype=torch.int32, device=device)
    count = torch.empty(TOKENS, dtype=torch.int32, device=device)
    positions = torch.tensor([end * RATIO - 1 for end in ends], dtype=torch.int32, device=device)
    choice.choose(positions, RATIO, chosen, count)
    assert count.tolist() == [BUDGET] * TOKENS
    assert not choice.counts.any() and not choice.arrived.any()
    for t, end in enumerate(ends):
        best = sorted(range(end), key=lambda block: (-float(scores[t, block]), block))[:BUDGET]
        assert sorted(chosen[t].tolist()) == sorted(best)
