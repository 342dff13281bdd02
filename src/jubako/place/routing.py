"""How often experts are chosen, flat and skewed as `synth` makes its routers, and what a cache of them gains."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SKEW = 0.24  # a skewed router's row norms fall with rank^-SKEW
DEVIATION = 3.0  # of the router's logits
_TOKENS = 2000

Popularity = NDArray[np.float64]


def flat(experts: int, used: int) -> Popularity:
    """Every expert is chosen as often: probabilities [experts] that a token uses it, their sum `used`."""
    return np.full(experts, used / experts)


@lru_cache(maxsize=8)
def _skewed(experts: int, used: int) -> Popularity:
    norms = np.arange(1, experts + 1) ** -SKEW
    norms /= np.sqrt(np.mean(norms**2))
    logits = np.random.default_rng(0).standard_normal((_TOKENS, experts)) * norms * DEVIATION
    chosen = np.argpartition(logits, -used, axis=1)[:, -used:]
    counts = np.bincount(chosen.ravel(), minlength=experts) / _TOKENS
    return np.sort(counts)[::-1]


def skewed(experts: int, used: int) -> Popularity:
    """The same for a skewed router, the most popular first: logits are normal, each expert's with its own deviation."""
    return _skewed(experts, used).copy()


def distinct(popularity: Popularity, tokens: int) -> float:
    """Different experts that so many tokens use together, on average."""
    return float(np.sum(1 - (1 - popularity) ** tokens))


def hit_rate(popularity: Popularity, held: int) -> float:
    """Of the uses, those that the `held` most popular experts serve."""
    return float(popularity[:held].sum() / popularity.sum())


class Counted:
    """Different experts that so many tokens use together, on average: each number of held ones is reckoned once."""

    def __init__(self, popularity: Popularity, tokens: int) -> None:
        self.experts = len(popularity)
        self._used = 1 - (1 - popularity) ** tokens
        self._missed: dict[int, float] = {}

    def distinct(self) -> float:
        return self.missed(0)

    def missed(self, held: int) -> float:
        """Of them, those beyond the `held` most popular."""
        if held not in self._missed:
            self._missed[held] = float(self._used[held:].sum())
        return self._missed[held]
