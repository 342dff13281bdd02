"""What a step gives: logits that stay on the device until somebody reads them, as greedy decoding never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..text.sampling import Sampler

Largest = tuple[np.ndarray, np.ndarray]  # ids and logits [n, some]


class Logits(Sequence["Row"]):
    """Float32 logits [n, vocabulary] after the n tokens that a sequence read in one step.

    They hold until the executor's next call. likeliest: of each token the id of the largest logit, the lowest on ties;
    -1 where the device did not look, or a number was not finite.
    """

    def __init__(
        self, fetch: Callable[[], np.ndarray], likeliest: Sequence[int], find: Callable[[], Largest] | None = None
    ) -> None:
        self.likeliest = likeliest
        self._fetch, self._find = fetch, find
        self._rows: np.ndarray | None = None
        self._largest: Largest | None = None

    @classmethod
    def of(cls, rows: np.ndarray) -> Logits:
        """Logits [n, vocabulary] that are at hand."""
        return cls(lambda: rows, (-1,) * len(rows))

    def array(self) -> np.ndarray:
        """All of them: [n, vocabulary]."""
        if self._rows is None:
            self._rows = self._fetch()
        return self._rows

    def largest(self) -> Largest | None:
        """Some of the largest, if the device can find them."""
        if self._largest is None and self._find is not None:
            self._largest = self._find()
        return self._largest

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.likeliest)

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, index) for index in range(len(self.likeliest)))

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
    def largest(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids and logits of the largest, in any order, if the device can find them."""
        found = self._of.largest()
        return None if found is None else (found[0][self._index], found[1][self._index])

    @property
    def logits(self) -> np.ndarray:
        """[vocabulary]"""
        row: np.ndarray = self._of.array()[self._index]
        return row


def sample(sampler: Sampler, row: Row, position: int) -> int:
    """The sampler's token for `position`, from no more of the row than that takes."""
    if row.likeliest >= 0:
        if sampler.greedy:
            return row.likeliest
        if sampler.params.top_k and (largest := row.largest) is not None:
            token = sampler.sample_largest(*largest, position)
            if token is not None:
                return token
    return sampler.sample(row.logits, position)
