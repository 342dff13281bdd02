"""What a layer of a step takes whose experts do not all lie in video memory, where three work at a time:

    GPU    dense work ─► asks │ fetches ─► experts in slots ─► waits │ dense work of the next layer ─► asks …
    CPU                       │ hand-off ─► its share ───────────────┤
    link   …those named early │ its share │ those of the next layer that were named early …

The layer lasts as long as the one that is busiest, and the link's share is what ends when the CPU does. A layer lacks
now none and now several of its experts, so times are means over how many, not the time of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from .factors import Factors


@dataclass(frozen=True)
class Outside:
    """Seconds: base, the dense work of a layer; slots, its experts in slots; fetch and compute, an absent expert over
    the link and by the CPU."""

    base: float
    slots: float
    fetch: float
    compute: float
    factors: Factors

    def waiting(self, used: float, away: float) -> tuple[float, float]:
        """(shown, busy): mean seconds that the GPU has nothing to do in a layer that uses so many experts and lacks
        `away` of them on average, and that CPU or link, whichever has more, work for it."""
        if away <= 0:
            return 0.0, 0.0
        absent, weights = _binomial(max(round(used), 1), away)
        lasts, busy = self._lasts(absent)
        return float(weights @ lasts) - self.base - self.slots, float(weights @ busy)

    def _lasts(self, absent: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds of a layer by its absent experts, and of the busier of CPU and link in it."""
        both, handoff = self.fetch + self.compute, self.factors.handoff
        even = (self.base + handoff + absent * self.compute) / both  # the link's, early and late, if both end together
        early = np.minimum(np.minimum(absent, self.factors.ahead), even)
        # guesses are taken by their rank, and the lower they stand the more of them are wrong
        right = early * (1 - self.factors.wrong * (early + 1) / 2 / (absent + 1))
        rest = absent - right
        alone = handoff + rest * self.compute  # the CPU without the link's late share
        late = np.minimum(alone - self.slots, self.base + alone - early * self.fetch) / both
        late = np.clip(late, 0, rest)
        cpu = handoff * np.minimum(rest - late, 1) + (rest - late) * self.compute
        link = (early + late) * self.fetch
        gpu = self.base + self.slots + late * self.fetch
        return np.maximum(np.maximum(gpu, link), self.base + cpu), np.maximum(link, cpu)


def _binomial(count: int, mean: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """0 … count, and how probable each is if every one of `count` counts as often."""
    numbers = np.arange(count + 1, dtype=np.float64)
    share = min(mean / count, 1 - 1e-9)
    ways = lgamma(count + 1) - np.array([lgamma(n + 1) + lgamma(count - n + 1) for n in range(count + 1)])
    return numbers, np.exp(ways + numbers * np.log(share) + (count - numbers) * np.log1p(-share))
