"""Checkpoints in memory: a prompt resumes from the longest one that begins it, whichever conversation made it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...ops.pages import PagePool, Saved
from .checkpoint import Checkpoint, prefix_digests

HALF_LIFE = 900.0  # seconds in which a checkpoint that nobody uses loses half its worth


class PrefixStore:
    """Owns checkpoints and their holds on pages of `pool`, within `budget` bytes; the least useful goes first.

    Found by length and digest of the tokens; the tokens themselves decide.
    """

    def __init__(self, pool: PagePool, budget: int) -> None:
        self.pool = pool
        self.budget = budget
        self._found: dict[tuple[int, bytes], Checkpoint] = {}
        self._lengths: Counter[int] = Counter()
        self._held: Counter[int] = Counter()  # page -> checkpoints that hold it
        self.fixed_bytes = 0  # of all checkpoints, without their pages

    def __len__(self) -> int:
        return len(self._found)

    @property
    def bytes(self) -> int:
        """Memory of all checkpoints; pages that several hold count once."""
        return self.fixed_bytes + len(self._held) * self.pool.page_bytes

    def find(self, ids: np.ndarray) -> Checkpoint | None:
        """The longest checkpoint that begins `ids` (int32) and leaves at least one token to read."""
        lengths = sorted(length for length in self._lengths if length < len(ids))
        for key in zip(reversed(lengths), reversed(prefix_digests(ids, lengths)), strict=True):
            checkpoint = self._found.get(key)
            if checkpoint is not None and checkpoint.begins(ids):
                return checkpoint
        return None

    def use(self, checkpoint: Checkpoint) -> None:
        """Tell that a prompt resumes from it."""
        checkpoint.uses += 1
        checkpoint.used = time.monotonic()

    def holds(self, checkpoint: Checkpoint) -> bool:
        return self._found.get((len(checkpoint), checkpoint.digest)) is checkpoint

    def add(self, ids: np.ndarray, saved: Saved) -> Checkpoint | None:
        """Take over what was saved after `ids` (int32). None if that is known already or more than the budget."""
        tokens = ids.copy()
        [digest] = prefix_digests(tokens, [len(tokens)])
        known = self._found.get((len(tokens), digest))
        if known is not None:
            self.pool.pages.release(saved.pages)
            known.used = time.monotonic()
            return None
        checkpoint = Checkpoint(tokens, digest, saved, self.find(tokens))
        for other in self._found.values():
            if other.parent is checkpoint.parent and len(other) > len(tokens) and checkpoint.begins(other.tokens):
                other.parent = checkpoint
        self._found[len(tokens), digest] = checkpoint
        self._lengths[len(tokens)] += 1
        self._held.update(saved.pages)
        self.fixed_bytes += saved.fixed.nbytes
        while self.bytes > self.budget and self._drop_least():
            pass
        return checkpoint if self.holds(checkpoint) else None

    def make_room(self, pages: int, spare: Checkpoint | None = None) -> bool:
        """Drop checkpoints other than `spare` until so many pages are free; False if it can't be done."""
        while self.pool.pages.free < pages and self._drop_least(spare):
            pass
        return self.pool.pages.free >= pages

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget it, if it is still here."""
        if not self.holds(checkpoint):
            return
        del self._found[len(checkpoint), checkpoint.digest]
        _take_out(self._lengths, [len(checkpoint)])
        _take_out(self._held, checkpoint.saved.pages)
        self.fixed_bytes -= checkpoint.saved.fixed.nbytes
        self.pool.pages.release(checkpoint.saved.pages)
        for other in self._found.values():
            if other.parent is checkpoint:
                other.parent = checkpoint.parent

    def _drop_least(self, spare: Checkpoint | None = None) -> bool:
        now = time.monotonic()
        idle = [checkpoint for checkpoint in self._found.values() if not checkpoint.busy and checkpoint is not spare]
        if idle:
            self.drop(min(idle, key=lambda checkpoint: self._worth(checkpoint, now)))
        return bool(idle)

    def _worth(self, checkpoint: Checkpoint, now: float) -> float:
        """Tokens that would have to be read again, per byte it alone costs, by use and recency."""
        again = len(checkpoint) - (len(checkpoint.parent) if checkpoint.parent else 0)
        alone = sum(self._held[page] == 1 for page in checkpoint.saved.pages)
        size = checkpoint.saved.fixed.nbytes + alone * self.pool.page_bytes
        return float(again * (1 + checkpoint.uses) / size * 0.5 ** ((now - checkpoint.used) / HALF_LIFE))


def _take_out(counts: Counter[int], items: Sequence[int]) -> None:
    for item in items:
        counts[item] -= 1
        if counts[item] == 0:
            del counts[item]
