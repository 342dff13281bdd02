"""A proposer without weights: what followed the longest suffix of the text when it stood there before.

Agents repeat code, file names, whole functions. Costs a dictionary look-up per token; a token id has at most 20 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

SHORTEST = 3  # tokens that must repeat before anything is proposed
LONGEST = 32  # a longer match counts no more
CANDIDATES = 16  # earlier places looked at, the latest first
_GRAM = (1 << 20 * SHORTEST) - 1


class SuffixIndex:
    """Finds earlier places of a text's last tokens. Owns a copy of the text; `extend` keeps it current."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        line = np.array(ids, np.int64)
        padded = np.concatenate([np.zeros(SHORTEST - 1, np.int64), line])
        grams = np.zeros(len(line), np.int64)
        for place in range(SHORTEST):
            grams = grams << 20 | padded[place : place + len(line)]
        order = np.argsort(grams, kind="stable")
        earlier = np.full(len(line), -1)
        same = grams[order[1:]] == grams[order[:-1]]
        earlier[order[1:][same]] = order[:-1][same]
        self.ids = array("q", line.tobytes())
        self._gram = int(grams[-1]) if len(line) else 0  # the last SHORTEST tokens as one number, 20 bits each
        self._latest: dict[int, int] = dict(
            zip(grams.tolist(), range(len(line)), strict=True)
        )  # gram -> last token's index
        self._earlier = array(
            "q", earlier.tobytes()
        )  # for each token: the same for the place before, -1 where there is none

    def extend(self, ids: Iterable[int]) -> None:
        """Add tokens at the end."""
        for id in ids:
            self.ids.append(id)
            end = len(self.ids) - 1
            self._gram = (self._gram << 20 | id) & _GRAM
            self._earlier.append(self._latest.get(self._gram, -1))
            self._latest[self._gram] = end

    def propose(self, count: int) -> tuple[int, list[int]]:
        """The length of the longest match (0: none of SHORTEST or more), and up to `count` tokens that followed it.

        Among equally long matches the latest wins. A match that ends a moment ago repeats itself.
        """
        end = len(self.ids) - 1
        best, place = 0, -1
        candidate = self._earlier[end] if end >= SHORTEST else -1
        for _ in range(CANDIDATES):
            if candidate < 0 or best == LONGEST:
                break
            length = self._match(candidate, end)
            if length > best and length >= SHORTEST:
                best, place = length, candidate
            candidate = self._earlier[candidate]
        if not best:
            return 0, []
        line = self.ids[place + 1 : place + 1 + count].tolist()
        while len(line) < count:
            line.append(line[len(line) - (end - place)])
        return best, line

    def _match(self, a: int, b: int) -> int:
        """How many tokens up to `a` and up to `b` are the same, LONGEST at most."""
        length = 0
        while length < LONGEST and a >= length and self.ids[a - length] == self.ids[b - length]:
            length += 1
        return length
