"""What the engine remembers of prompts it has read: checkpoints in memory, and behind them those on disk."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.pages import PagePool
from ..plan import SharingExecutor
from .checkpoint import Checkpoint
from .file import Layout
from .prefix import PrefixStore
from .store import SessionStore


class Recall:
    """Owns the checkpoints in memory (`budget` bytes, pages of `pool`) and feeds the disk, if there is a `store`."""

    def __init__(
        self, executor: SharingExecutor, pool: PagePool, budget: int, store: SessionStore | None, layout: Layout
    ) -> None:
        self.prefix = PrefixStore(pool, budget)
        self._executor, self._pool, self._store = executor, pool, store
        self._hits = self._misses = 0
        if store is not None:
            store.attach(layout, pool)

    def known(self, ids: np.ndarray) -> int:
        """How many of the first tokens of `ids` (int32) the memory knows; the disk is not asked."""
        checkpoint = self.prefix.find(ids)
        return len(checkpoint) if checkpoint else 0

    def resume(self, state: Any, ids: np.ndarray) -> int:
        """Bring an empty state as far along `ids` as is known, at least one token short of their end; how far."""
        checkpoint = self._longest(ids)
        if checkpoint is None:
            self._misses += 1
            return 0
        self._executor.resume(state, checkpoint.saved, checkpoint.tokens)
        self.prefix.use(checkpoint)
        self._hits += 1
        return len(checkpoint)

    def save(self, state: Any, ids: np.ndarray, durable: bool) -> None:
        """Keep what `state` is after `ids` (int32), if that is new. durable: worth a place on the disk, too."""
        checkpoint = self.prefix.add(ids, self._executor.save(state))
        if checkpoint is not None and durable and self._store is not None:
            self._store.offer(checkpoint)

    def make_room(self, pages: int, spare: Checkpoint | None = None) -> bool:
        """Free so many pages, at the cost of checkpoints other than `spare`. False: it can't be done."""
        if self.prefix.make_room(pages, spare):
            return True
        if self._store is not None:
            self._store.drain()  # what is on its way to the disk has to stay until it is there
        return self.prefix.make_room(pages, spare)

    def poll(self) -> None:
        """Let go of what the disk has got meanwhile."""
        if self._store is not None:
            self._store.poll()

    def close(self) -> None:
        """Write what the disk has not got yet, and give all pages back."""
        if self._store is not None:
            self._store.close()
        self.prefix.make_room(self._pool.pages.count)

    def figures(self) -> dict[str, Any]:
        """Of the memory, and of the disk where there is one."""
        prefix, store = self.prefix, self._store
        figures: dict[str, Any] = {
            "entries": len(prefix),
            "bytes": prefix.bytes,
            "states": prefix.fixed_bytes,
            "budget": prefix.budget,
            "hits": self._hits,
            "misses": self._misses,
        }
        return figures if store is None else {**figures, "disk": store.figures()}

    def _longest(self, ids: np.ndarray) -> Checkpoint | None:
        """The longest checkpoint that begins `ids`; one that only the disk has is read first."""
        known = self.prefix.find(ids)
        if self._store is None:
            return known
        length = self._store.find(ids, len(known) if known else 0)
        if length and self.make_room(-(-length // self._pool.page_tokens), spare=known):
            saved = self._store.load(ids, known)
            if saved is not None:
                self.prefix.add(ids[: saved.position], saved)
        return self.prefix.find(ids)
