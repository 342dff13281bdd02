"""A pool of pages and states without a network, for tests of what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from jubako.engine.saved.checkpoint import Checkpoint, prefix_digests
from jubako.engine.saved.file import Layout
from jubako.ops.pages import Pages, Saved

PAGE_TOKENS, PAGE_BYTES, FIXED_BYTES = 4, 24, 40
LAYOUT = Layout(bytes(range(32)), 1000, PAGE_TOKENS, PAGE_BYTES, FIXED_BYTES)


class Pool:
    """`ops.pages.PagePool` in one array."""

    page_tokens, page_bytes = PAGE_TOKENS, PAGE_BYTES

    def __init__(self, count: int = 400) -> None:
        self.pages = Pages(count)
        self.data = np.zeros((count, PAGE_BYTES), np.uint8)

    def read(self, pages: Sequence[int]) -> np.ndarray:
        return self.data[list(pages)]

    def write(self, pages: Sequence[int], data: np.ndarray) -> None:
        self.data[list(pages)] = data


def contents(ids: np.ndarray, place: int) -> np.ndarray:
    """What page `place` of the tokens `ids` holds: it depends on all of them up to its end."""
    return _bytes(ids[: (place + 1) * PAGE_TOKENS], PAGE_BYTES)


def fixed(ids: np.ndarray) -> np.ndarray:
    return _bytes(ids, FIXED_BYTES)


def _bytes(ids: np.ndarray, count: int) -> np.ndarray:
    return np.frombuffer(blake2b(ids.tobytes(), digest_size=count).digest(), np.uint8)


def saved(pool: Pool, ids: np.ndarray, before: Saved | None = None, lag: int = 0) -> Saved:
    """The state after `ids`, sharing the full pages of an earlier one. lag: tokens the draft layer has not read."""
    pages = list(before.pages[: min(before.position, before.draft_position) // PAGE_TOKENS]) if before else []
    pool.pages.hold(pages)
    for place in range(len(pages), -(-len(ids) // PAGE_TOKENS)):
        pages.append(pool.pages.take())
        pool.write(pages[-1:], contents(ids, place)[None])
    return Saved(len(ids), len(ids) - lag, fixed(ids), tuple(pages))


def checkpoint(pool: Pool, ids: np.ndarray, before: Checkpoint | None = None, lag: int = 0) -> Checkpoint:
    [digest] = prefix_digests(ids, [len(ids)])
    return Checkpoint(ids, digest, saved(pool, ids, before.saved if before else None, lag), before)


def is_right(pool: Pool, state: Saved, ids: np.ndarray) -> bool:
    """Whether a state is exactly what was saved after the first of `ids`."""
    own = ids[: state.position]
    pages = [np.array_equal(pool.data[page], contents(own, place)) for place, page in enumerate(state.pages)]
    return len(pages) == -(-len(own) // PAGE_TOKENS) and all(pages) and np.array_equal(state.fixed, fixed(own))
