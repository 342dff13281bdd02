"""Pages, checkpoints in memory, and that resuming is the same as reading."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import FIXED_BYTES, PAGE_BYTES, PAGE_TOKENS, Pool, is_right, saved
from together import SMALL

import jubako
from jubako.engine.executor import DraftWish
from jubako.engine.saved import prefix as module
from jubako.engine.saved.checkpoint import checkpoint_positions
from jubako.engine.saved.prefix import PrefixStore
from jubako.ops.pages import Pages


@pytest.fixture(scope="module")
def executor() -> Any:
    return cast(Any, jubako.load(SMALL, context=2048).executor)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=80))
def test_pages_are_counted(actions: list[tuple[int, int]]) -> None:
    pages, holders = Pages(12), dict[int, int]()
    for action, number in actions:
        held = sorted(holders)
        if action == 0 and len(holders) < 12:
            page = pages.take()
            assert page not in holders and page == min(set(range(12)) - set(holders))
            holders[page] = 1
        elif action == 1 and held:
            pages.hold([held[number % len(held)]])
            holders[held[number % len(held)]] += 1
        elif action == 2 and held:
            page = held[number % len(held)]
            pages.release([page])
            holders[page] -= 1
            if not holders[page]:
                del holders[page]
        assert pages.free == 12 - len(holders)
        assert all(pages.holders(page) == count for page, count in holders.items())
    while len(holders) < 12:
        holders[pages.take()] = 1
    with pytest.raises(jubako.MachineError, match="all 12 pages"):
        pages.take()


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 63, 64, 65, 130, 191])
def test_a_resumed_state_reads_on_with_the_same_bits(executor: Any, cut: int) -> None:
    """Logits, drafts, and what is saved later; the state it came from goes on with other tokens meanwhile."""
    rng = np.random.default_rng(cut)
    ids = rng.integers(1, 8000, 260).tolist()
    [read] = executor.share_memory(1, 2048, 0).states
    logits = executor.forward(ids, read, last_only=False)

    memory = executor.share_memory(2, 2048, 0)
    pool, (first, second) = memory.pool, memory.states
    executor.forward(ids[:cut], first, last_only=True)
    state = first.save()
    executor.forward(rng.integers(1, 8000, 70).tolist(), first, last_only=True)
    second.resume(state, ids[:cut])
    assert np.array_equal(executor.forward(ids[cut:], second, last_only=False), logits[cut:])
    assert executor.draft([DraftWish(5, second, 3)]) == executor.draft([DraftWish(5, read, 3)])
    a, b = second.save(), read.save()
    assert (a.position, a.draft_position) == (b.position, b.draft_position)
    assert len(set(state.pages[: min(cut, state.draft_position) // 64]) - set(a.pages)) == 0, "full pages are shared"
    first.reset()
    second.reset()
    for one in (state, a):
        pool.pages.release(one.pages)
    assert pool.pages.free == pool.pages.count


def test_a_resumed_state_takes_back_columns_like_another(executor: Any) -> None:
    ids = np.random.default_rng(5).integers(1, 8000, 150).tolist()
    first, second = executor.share_memory(2, 512, 0).states
    executor.forward(ids[:98], first, last_only=True)
    executor.step([(ids[98:103], first)])
    first.keep(3)
    state = first.save()
    second.resume(state, ids[:101])
    want = executor.forward([*ids[:101], 7, 8], executor.new_state(512), last_only=False)[-2:]
    for one in (first, second):
        executor.step([(ids[120:130], one)])
        one.keep(1)
        executor.step([([9, 9, 9], one)])
        one.keep(1)
    assert np.array_equal(first.save().fixed, second.save().fixed)
    second.resume(state, ids[:101])
    [got] = executor.step([([7, 8], second)])
    assert np.array_equal(got, want)


def test_positions_of_checkpoints() -> None:
    assert checkpoint_positions(10_000, 0, [], 64) == [4096, 8192, 9984]
    assert checkpoint_positions(10_000, 5000, [100, 6000], 64) == [6000, 8192, 9984]
    assert checkpoint_positions(10_000, 0, [4100, 10_000, 20_000], 64) == [4100, 8192, 10_000]
    assert checkpoint_positions(50, 0, [], 64) == []
    assert checkpoint_positions(65, 64, [64], 64) == []


def test_the_longest_true_prefix_is_found() -> None:
    rng = np.random.default_rng(1)
    pool = Pool()
    store = PrefixStore(pool, 1 << 30)
    ids = rng.integers(0, 9, 200).astype(np.int32)
    for length in (10, 40, 41, 120):
        store.add(ids[:length], saved(pool, ids[:length]))
    other = np.concatenate([ids[:30], 99 - ids[30:60]]).astype(np.int32)
    store.add(other, saved(pool, other))
    for asked, found in [(200, 120), (121, 120), (120, 41), (41, 40), (11, 10), (10, 0)]:
        checkpoint = store.find(ids[:asked])
        assert (len(checkpoint) if checkpoint else 0) == found
        assert checkpoint is None or is_right(pool, checkpoint.saved, ids)
    changed = ids.copy()
    changed[35] += 1
    assert len(store.find(changed) or ()) == 10


def test_digests_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prefix_digests", lambda ids, lengths: [b"same"] * len(lengths))
    pool = Pool()
    store = PrefixStore(pool, 1 << 30)
    ids = np.arange(20, dtype=np.int32)
    store.add(ids[:8], saved(pool, ids[:8]))
    assert store.find(ids[5:]) is None
    assert len(store.find(ids) or ()) == 8


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.booleans()), min_size=1, max_size=25))
def test_the_budget_holds_and_pages_come_back(prompts: list[tuple[int, int, bool]]) -> None:
    pool = Pool(200)
    budget = 12 * (FIXED_BYTES + 5 * PAGE_BYTES)
    store = PrefixStore(pool, budget)
    base = np.arange(60, dtype=np.int32)
    for length, fork, use in prompts:
        ids = base[:length].copy()
        ids[min(fork, length) :] += 100
        known = store.find(ids)
        if use and known:
            store.use(known)
        store.make_room(20)
        store.add(ids, saved(pool, ids, known.saved if known else None))
        held = {page for one in store._found.values() for page in one.saved.pages}
        assert store.bytes == len(store) * FIXED_BYTES + len(held) * PAGE_BYTES <= budget
        assert pool.pages.free == 200 - len(held)
        for one in store._found.values():
            assert is_right(pool, one.saved, one.tokens)
            assert one.parent is store.find(one.tokens)
    assert store.make_room(200) and len(store) == 0 and pool.pages.free == 200
    assert not store.make_room(201)


def test_the_least_useful_goes_first() -> None:
    pool = Pool()
    store = PrefixStore(pool, 3 * FIXED_BYTES + 23 * PAGE_BYTES)
    long, short, used, new = (np.full(size, n, np.int32) for n, size in enumerate((40, 12, 12, 40)))
    for ids in (long, short, used):
        store.add(ids, saved(pool, ids))
    for _ in range(5):
        store.use(store.find(np.append(used, used)))  # type: ignore[arg-type]
    store.add(new, saved(pool, new))
    left = {int(one.tokens[0]) for one in store._found.values()}
    assert left == {0, 2, 3}, "of the two short ones the unused"
    store.find(np.append(long, long)).used -= 1e6  # type: ignore[union-attr]
    store.make_room(pool.pages.free + 1)
    assert {int(one.tokens[0]) for one in store._found.values()} == {2, 3}, "what nobody used for long"


def test_what_the_disk_is_about_to_get_stays() -> None:
    pool = Pool(20)
    store = PrefixStore(pool, 1 << 20)
    ids = np.arange(8 * PAGE_TOKENS, dtype=np.int32)
    checkpoint = store.add(ids, saved(pool, ids))
    assert checkpoint is not None
    checkpoint.busy = True
    assert not store.make_room(20) and store.holds(checkpoint)
    checkpoint.busy = False
    assert store.make_room(20) and not store.holds(checkpoint)
