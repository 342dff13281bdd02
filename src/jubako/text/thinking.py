"""A limit on thinking: after so many tokens the tokens that end it are forced."""

from __future__ import annotations

import numpy as np

from ..core import ThinkingBudget


class ThinkingRule:
    """Leaves the first `tokens` tokens free, then allows only the tokens of `close`, one by one.

    When one of `ends` came by itself, the rule is done. vocabulary: number of logits.
    """

    def __init__(self, budget: ThinkingBudget, vocabulary: int) -> None:
        self._budget = budget
        self._left = budget.tokens
        self._forced = 0  # tokens of `close` that came
        self._done = not budget.close
        self._mask = np.zeros(vocabulary, bool)

    def allowed(self) -> np.ndarray | None:
        if self._done or self._left > 0:
            return None
        self._mask[:] = False
        self._mask[self._budget.close[self._forced]] = True
        return self._mask

    def forced(self) -> list[int]:
        return [] if self._done or self._left > 0 else list(self._budget.close[self._forced :])

    def accept(self, token: int) -> None:
        if self._done:
            return
        if self._left > 0:
            self._left -= 1
            self._done = token in self._budget.ends
        else:
            self._forced += 1
            self._done = self._forced == len(self._budget.close)

    def copy(self) -> ThinkingRule:
        other = ThinkingRule(self._budget, len(self._mask))
        other._left, other._forced, other._done = self._left, self._forced, self._done
        return other

    @property
    def finished(self) -> bool:
        return False
