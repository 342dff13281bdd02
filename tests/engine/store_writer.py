"""A process that writes sessions without end, to be killed while it does: `python store_writer.py DIRECTORY SEED`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from pools import LAYOUT, Pool, checkpoint

from jubako.engine.saved.store import SessionStore


def main() -> None:
    store, pool = SessionStore(Path(sys.argv[1]), limit=60_000), Pool()
    store.attach(LAYOUT, pool)
    rng = np.random.default_rng(int(sys.argv[2]))
    print("ready", flush=True)
    while True:
        ids = conversation(int(rng.integers(40)))
        made, before = [], None
        for length in sorted(rng.integers(1, 400, 3).tolist()):
            before = checkpoint(pool, ids[:length], before, lag=int(rng.integers(2)))
            store.offer(before)
            made.append(before)
        store.drain()
        for one in made:
            pool.pages.release(one.saved.pages)


def conversation(number: int) -> np.ndarray:
    """One of some conversations of 400 tokens; four each begin alike."""
    alike = np.random.default_rng(number // 4).integers(0, 1000, 100)
    return np.concatenate([alike, np.random.default_rng(1000 + number).integers(0, 1000, 301)]).astype(np.int32)


if __name__ == "__main__":
    main()
