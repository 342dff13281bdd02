"""Block-sparse attention: an indexer scores blocks of past tokens, each query attends to the best of them and its tail.

With `ratio` r, block b holds tokens rb … rb+r-1. A query at position p may choose among its floor((p+1)/r) complete
blocks (one that it finishes itself competes like any other) and always sees the up to r-1 tokens after them.
"""

from __future__ import annotations

import math

import torch

from ..config import Config
from ..network import Attention, Indexer
from .basics import float32, rms_norm, rope


class AttentionCache:
    """What one attention layer remembers of a sequence, in float32.

    keys, values [n, kv_heads, head_dim]   of every token, keys normed and rotated
    pooled       [blocks, index_dim]       key of every complete block: mean, norm, rotation to its first token
    unpooled     [0 … ratio-1, index_dim]  raw index keys of the block that is not complete yet
    """

    def __init__(self, config: Config, ratio: int) -> None:
        self.config = config
        self.ratio = ratio
        self.frequencies = config.rope_frequencies()
        self.keys = torch.empty(0, config.kv_heads, config.head_dim)
        self.values = torch.empty(0, config.kv_heads, config.head_dim)
        self.pooled = torch.empty(0, config.index_dim)
        self.unpooled = torch.empty(0, config.index_dim)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rope(x, positions, self.frequencies, self.config.rope_magnitude)


def attention_prepare(
    weights: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: AttentionCache, position: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm and rotate the raw projections of the tokens from `position` on; append keys and values to the cache.

    q [T, heads*2*D]: per head D query elements, then D of the gate. Gives queries [T, heads, D], gate [T, heads*D].
    """
    config = cache.config
    tokens, dim = len(q), config.head_dim
    positions = torch.arange(position, position + tokens)
    queries, gate = q.view(tokens, config.heads, 2 * dim).chunk(2, dim=-1)
    queries = cache.rotate(rms_norm(queries, float32(weights.q_norm), config.eps), positions)
    keys = k.view(tokens, config.kv_heads, dim)
    keys = cache.rotate(rms_norm(keys, float32(weights.k_norm), config.eps), positions)
    cache.keys = torch.cat([cache.keys, keys])
    cache.values = torch.cat([cache.values, v.view(tokens, config.kv_heads, dim)])
    return queries, gate.reshape(tokens, config.heads * dim)


def index_update(indexer: Indexer, raw_k: torch.Tensor, cache: AttentionCache, position: int) -> None:
    """Take the raw index keys [T, D] of the tokens from `position` on; pool the blocks that become complete."""
    config, ratio = cache.config, cache.ratio
    done = len(cache.pooled)
    assert done * ratio + len(cache.unpooled) == position, "index keys must come in order"
    raw = torch.cat([cache.unpooled, raw_k])
    blocks = len(raw) // ratio
    mean = raw[: blocks * ratio].view(blocks, ratio, config.index_dim).mean(dim=1)
    normed = rms_norm(mean, float32(indexer.k_norm), config.eps)
    first_tokens = torch.arange(done, done + blocks) * ratio
    cache.pooled = torch.cat([cache.pooled, cache.rotate(normed[:, None], first_tokens)[:, 0]])
    cache.unpooled = raw[blocks * ratio :]


def index_select(
    indexer: Indexer, q: torch.Tensor, cache: AttentionCache, position: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks that queries [T, heads*D] from `position` on choose: blocks int32 [T, budget], counts int32 [T].

    A block's score is the sum over heads of max(0, q·k) / √D; where scores tie the lower block wins. The first
    counts[t] entries of a row are block indices in rising order, the rest is -1.
    """
    config = cache.config
    tokens, dim = len(q), config.index_dim
    positions = torch.arange(position, position + tokens)
    queries = rms_norm(q.view(tokens, config.index_heads, dim), float32(indexer.q_norm), config.eps)
    queries = cache.rotate(queries, positions)
    scores = torch.relu(queries @ cache.pooled.T).sum(dim=1) / math.sqrt(dim)

    budget = config.index_blocks(cache.ratio)
    complete = (positions + 1) // cache.ratio
    incomplete = torch.arange(len(cache.pooled)) >= complete[:, None]
    order = scores.masked_fill(incomplete, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :budget]
    counts = complete.clamp(max=budget)
    none = len(cache.pooled)
    chosen = order.masked_fill(torch.arange(order.shape[1]) >= counts[:, None], none).sort(dim=1).values
    blocks = torch.full((tokens, budget), -1, dtype=torch.int32)
    blocks[:, : chosen.shape[1]] = chosen.masked_fill(chosen == none, -1)
    return blocks, counts.int()


def sparse_attention(
    q: torch.Tensor,
    gate: torch.Tensor,
    cache: AttentionCache,
    blocks: torch.Tensor | None,
    counts: torch.Tensor | None,
    position: int,
) -> torch.Tensor:
    """Attention of queries [T, heads, D] over their chosen blocks and tails, gated: [T, heads*D].

    The cache already holds the queries' own tokens. blocks None, or a count below 0, means every past token.
    Query head h uses key/value head h div (heads / kv_heads).
    """
    tokens, heads, dim = q.shape
    repeat = heads // cache.keys.shape[1]
    keys, values = (x.repeat_interleave(repeat, dim=1) for x in (cache.keys, cache.values))
    scores = torch.einsum("thd,nhd->htn", q, keys) / math.sqrt(dim)
    seen = _seen(len(keys), tokens, cache.ratio, blocks, counts, position)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.einsum("htn,nhd->thd", weights, values).reshape(tokens, -1) * torch.sigmoid(gate)


def _seen(
    cached: int, tokens: int, ratio: int, blocks: torch.Tensor | None, counts: torch.Tensor | None, position: int
) -> torch.Tensor:
    """Which of the cached tokens each query attends to: bool [T, cached]."""
    place = torch.arange(cached)
    positions = torch.arange(position, position + tokens)[:, None]
    causal = place <= positions
    if blocks is None or counts is None:
        return causal
    tail = place >= (positions + 1) // ratio * ratio
    total = cached // ratio + 1
    chosen = torch.zeros(tokens, total + 1, dtype=torch.bool)
    chosen.scatter_(1, blocks.long().masked_fill(blocks < 0, total), True)
    return causal & (tail | chosen[:, place // ratio] | (counts < 0)[:, None])
