"""`Heat`: how much each expert is used, and which should change places with one that has a slot.

A use counts less the longer ago it is (half after `HALF_LIFE` tokens), so that both often and lately count. An expert
takes another's slot only when it is hotter beyond chance: counts of a flat routing scatter by their square root.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

HALF_LIFE = 1024.0  # tokens
BEYOND_CHANCE = 4.0  # standard deviations of the difference of two counts


class Heat:
    """values float64 [layers, experts]: decayed numbers of uses."""

    def __init__(self, layers: int, experts: int, used: int) -> None:
        """used: experts of a token in each layer."""
        self.values = np.zeros((layers, experts))
        self.used = used
        self._seen = np.zeros((layers, experts), np.int64)

    def read(self, counts: np.ndarray) -> None:
        """Take new counts [layers, experts] of uses since the start; they may wrap at 32 bits."""
        new = (counts.astype(np.int64) - self._seen) & 0xFFFFFFFF
        self._seen = counts.astype(np.int64)
        tokens = float(new[0].sum()) / self.used
        self.values *= 0.5 ** (tokens / HALF_LIFE)
        self.values += new

    def order(self) -> np.ndarray:
        """All experts [n, 2] (layer, expert), the hottest first; among equals the first of every layer first."""
        layers, experts = self.values.shape
        expert, layer = np.divmod(np.arange(layers * experts), layers)
        by_heat = np.argsort(-self.values[layer, expert], kind="stable")
        return np.stack([layer, expert], 1)[by_heat].astype(np.int32)

    def swaps(self, inside: np.ndarray, outside: np.ndarray, most: int) -> list[tuple[int, int]]:
        """Pairs (index into inside, index into outside) of experts [n, 2] (layer, expert) that should change places."""
        cold, hot = self.values[tuple(inside.T)], self.values[tuple(outside.T)]
        count = min(most, len(cold), len(hot))
        if count == 0:
            return []
        coldest = np.argpartition(cold, count - 1)[:count]
        hottest = np.argpartition(-hot, count - 1)[:count]
        coldest, hottest = coldest[np.argsort(cold[coldest])], hottest[np.argsort(-hot[hottest])]
        gain = hot[hottest] - cold[coldest]
        worth = gain > BEYOND_CHANCE * np.sqrt(hot[hottest] + cold[coldest])
        return [(int(i), int(o)) for i, o, w in zip(coldest, hottest, worth, strict=True) if w]

    def save(self, file: Path) -> None:
        """Keep it for the next start, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(f".{os.getpid()}.npy")
        np.save(beside, self.values.astype(np.float32))
        beside.replace(file)

    def load(self, file: Path) -> bool:
        """Begin with what was saved; False where there is nothing, or nothing for this network."""
        try:
            values = np.load(file, allow_pickle=False)
        except Exception:  # numpy has many for a damaged file
            return False
        if values.shape != self.values.shape or values.dtype != np.float32:
            return False
        if not (np.isfinite(values) & (values >= 0)).all():
            return False
        self.values[:] = values
        return True
