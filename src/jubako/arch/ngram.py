"""Rows of the n-gram table (PLE): which rows a token reads, and the formula its constants come from.

Every token reads one row per hash head: heads_per_ngram heads for each n-gram order 2 … ngram_size, in that order.
Source: transformers `Qwen4ExpTextNGramEmbedding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .config import Config, NgramConfig

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def ngram_row_ids(config: Config, ids: Sequence[int] | np.ndarray, history: Sequence[int] | np.ndarray) -> np.ndarray:
    """Table rows of the tokens `ids` [T], as int64 [T, heads].

    history: the tokens before ids[0], oldest first; only the last ngram_size-1 matter, and at the start of a sequence
    it is empty. Walking back from a token, the first end-of-text token or the start of the sequence cuts the context:
    that place and all older ones read as end-of-text. The token itself does not cut its own context.
    """
    ngram = config.ngram
    assert ngram is not None, "this network has no n-gram table"
    past = ngram.size - 1
    kept = np.asarray(history, dtype=np.int64).reshape(-1)[-past:]
    line = np.full(past + len(ids), ngram.eos, dtype=np.int64)
    line[past - len(kept) : past] = kept
    line[past:] = ids

    multipliers, sizes, offsets = _constants(ngram)
    rows = np.empty((len(ids), ngram.heads), dtype=np.uint64)
    mixed = line[past:].astype(np.uint64) * multipliers[0]
    cut = np.zeros(len(ids), dtype=bool)
    for back in range(1, ngram.size):
        token = line[past - back : len(line) - back]
        cut = cut | (token == ngram.eos)
        token = np.where(cut, ngram.eos, token)
        mixed = mixed ^ (token.astype(np.uint64) * multipliers[back])
        heads = slice((back - 1) * ngram.heads_per_ngram, back * ngram.heads_per_ngram)
        rows[:, heads] = mixed[:, None] % sizes[heads] + offsets[heads]
    return rows.astype(np.int64)


@lru_cache(maxsize=16)
def _constants(ngram: NgramConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """multipliers, head_sizes, head_offsets as uint64."""
    first, second, third = (
        np.array(values, np.uint64) for values in (ngram.multipliers, ngram.head_sizes, ngram.head_offsets)
    )
    return first, second, third


def hash_multipliers(vocab: int, size: int, seed: int = 1234, ordinal: int = 0) -> tuple[int, ...]:
    """The odd multipliers of the hash, one per place. `ordinal` counts n-gram layers, not layers."""
    half = max(1, ((1 << 63) - 1) // max(vocab, 1) // 2)
    base = seed + 10007 * ordinal
    return tuple(2 * (_splitmix64(base + _GAMMA * (place + 2)) % half) + 1 for place in range(size))


def head_table(base: int, heads: int, ordinal: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and first rows of the heads: consecutive primes from `base` on, laid one after the other."""
    primes: list[int] = []
    candidate = base
    while len(primes) < (ordinal + 1) * heads:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    sizes = primes[ordinal * heads :]
    return tuple(sizes), tuple(sum(sizes[:head]) for head in range(heads))


def _splitmix64(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_prime(value: int) -> bool:
    return value >= 2 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))
