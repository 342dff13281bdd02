"""The exact choice of the best blocks: for a step's columns by `choice.py`, for a prompt by `choice_prompt.py`."""

from __future__ import annotations

import torch

from .choice import ColumnChoice
from .choice_prompt import choose_blocks
from .columns import Columns
from .index import score_columns
from .state import AttentionMemory


class Selector:
    """The choice of blocks, with the memory it works in. budget: most blocks of a query."""

    def __init__(self, budget: int, max_blocks: int, columns: int, device: torch.device) -> None:
        self.budget = budget
        self.columns = ColumnChoice(budget, max_blocks, columns, device)

    def takes_all(self, ratio: int, columns: Columns) -> bool:
        """Whether every query of a piece of a prompt has room for all blocks before it."""
        return columns.parts is None and (columns.start + columns.tokens) // ratio <= self.budget

    def __call__(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks int32 [T, budget] that the index queries q [T, heads, D] choose, and how many: int32 [T].

        What lies beyond a query's count means nothing.
        """
        blocks = torch.empty(len(q), self.budget, dtype=torch.int32, device=q.device)
        chosen = torch.empty(len(q), dtype=torch.int32, device=q.device)
        if columns.parts is None:
            choose_blocks(q, memory, columns, blocks, chosen)
        else:
            score_columns(q, memory, columns, self.columns.scores, self.columns.counts, self.budget)
            self.columns.choose(columns.positions, memory.ratio, blocks, chosen, columns.early)
        return blocks, chosen
