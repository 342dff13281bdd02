"""Saved states along a sequence: where they are taken, and what one is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from ...ops.pages import Saved

SPACING = 4096  # tokens of a long prompt between two checkpoints
DIGEST_BYTES = 32


@dataclass(eq=False)
class Checkpoint:
    """The state after `tokens` (int32), held in memory by `saved.prefix`.

    parent  the longest other checkpoint in the store whose tokens begin these
    uses    prompts that resumed from here; `used` is when, last, by the monotonic clock
    busy    the disk is about to get it, so it has to stay
    """

    tokens: np.ndarray
    digest: bytes
    saved: Saved
    parent: Checkpoint | None = None
    uses: int = 0
    used: float = field(default_factory=time.monotonic)
    busy: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def begins(self, ids: np.ndarray) -> bool:
        """Whether `ids` start with these tokens."""
        return len(self) <= len(ids) and np.array_equal(self.tokens, ids[: len(self)])


def checkpoint_positions(prompt: int, start: int, keep: Iterable[int], page: int, spacing: int = SPACING) -> list[int]:
    """Lengths of a prompt after which to take one, rising, beyond `start` tokens that were known.

    Those wished for in `keep`, every `spacing` tokens, and the last full page before the prompt's end, where the same
    prompt resumes when it comes again; the latter two not within a page of a wished one.
    """
    wished = {position for position in keep if start < position <= prompt}
    others = {*range(spacing, prompt, spacing), (prompt - 1) // page * page}
    near = {p for p in others if p > start and all(abs(p - w) >= page for w in wished)}
    return sorted(wished | near)


def prefix_digests(ids: np.ndarray, lengths: Sequence[int]) -> list[bytes]:
    """Digests of the first n of `ids` (int32) for each n of the rising `lengths`, in one pass."""
    running, done, digests = blake2b(digest_size=DIGEST_BYTES), 0, []
    for length in lengths:
        running.update(ids[done:length].tobytes())
        digests.append(running.copy().digest())
        done = length
    return digests


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many of the first tokens of two sequences are the same."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
