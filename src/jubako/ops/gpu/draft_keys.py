"""What tokens leave in an attention layer's cache, where nobody asks what they attend to: keys, values, index keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import prompt
from .columns import Columns
from .embed import decode
from .linear import Input, linear_many, long, prompt_of
from .matrix import Projections
from .prepare import Rope, attention_prepare
from .state import AttentionMemory


def store_keys(
    layer: Any, mixed: Input, memory: AttentionMemory, columns: Columns, rope: Rope, kv_heads: int, eps: float
) -> None:
    """Store what `layer` remembers of mixed [T, H]."""
    k, v, *index = some_of(layer.projections, (1, 2) if layer.indexer is None else (1, 2, 4), mixed)
    attention_prepare(layer, (k, k, v, *index, *index), memory, columns, rope, 0, kv_heads, 0, eps)


def some_of(weights: Projections, wanted: Sequence[int], x: Input) -> list[torch.Tensor]:
    """Products of some of the weights that share their input x [T, K], float32 [T, rows] each.

    Of many tokens no more rows are multiplied than those; a step's products read all of them at once.
    """
    if not long(x):
        every = linear_many(weights, x)
        return [every[place] for place in wanted]
    read = prompt_of(x)
    halves = read if isinstance(read, prompt.Halves) else prompt.in_half(read)
    counts = [weights.order[place][2] for place in wanted]
    rows = torch.empty(-(-sum(counts) // 8) * 8, weights.cols, dtype=torch.float16, device=halves.x.device)
    rows[sum(counts) :].zero_()
    parts = rows.split([*counts, len(rows) - sum(counts)])
    for place, part in zip(wanted, parts, strict=False):
        matrix, first, _ = weights.order[place]
        decode(weights.matrices[matrix], part, first)
    out = prompt.product(halves.x, rows)
    if halves.factor is not None:
        out *= halves.factor
    return list(out[:, : sum(counts)].split(counts, dim=1))
