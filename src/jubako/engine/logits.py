"""What a step gives: logits that stay on the device until somebody reads them, as greedy decoding never does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Logits(Sequence["Row"]):
    """Float32 logits [n, vocabulary] after the n tokens that a sequence read in one step.

    They hold until the executor's next call. likeliest: of each token the id of the largest logit, the lowest on ties;
    -1 where the device did not look, or a number was not finite.
    """

    def __init__(self, fetch: Callable[[], np.ndarray], likeliest: Sequence[int]) -> None:
        self.likeliest = likeliest
        self._fetch = fetch
        self._rows: np.ndarray | None = None

    @classmethod
    def of(cls, rows: np.ndarray) -> Logits:
        """Logits [n, vocabulary] that are at hand."""
        return cls(lambda: rows, (-1,) * len(rows))

    def array(self) -> np.ndarray:
        """All of them: [n, vocabulary]."""
        if self._rows is None:
            self._rows = self._fetch()
        return self._rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.likeliest)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [Row(self, row) for row in range(*index.indices(len(self)))]
        return Row(self, range(len(self))[index])


class Row:
    """What followed one token."""

    __slots__ = ("_index", "_of")

    def __init__(self, of: Logits, index: int) -> None:
        self._of, self._index = of, index

    @property
    def likeliest(self) -> int:
        """See `Logits.likeliest`."""
        return self._of.likeliest[self._index]

    @property
    def logits(self) -> np.ndarray:
        """[vocabulary]"""
        row: np.ndarray = self._of.array()[self._index]
        return row
