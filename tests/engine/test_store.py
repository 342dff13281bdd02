"""Sessions on disk: found again after a restart or a kill at any moment; what is damaged is never trusted."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools import LAYOUT, Pool, checkpoint, is_right
from store_writer import conversation
from together import SMALL, request, run, words

import jubako
from jubako.engine.saved.checkpoint import Checkpoint
from jubako.engine.saved.file import HEADER_BYTES, DamagedFile, Layout, read_header
from jubako.engine.saved.store import SessionStore, default_directory
from jubako.engine.scheduler import Scheduler

IDS = np.arange(100, dtype=np.int32)


def opened(directory: Path, pool: Pool, limit: int = 1 << 30, layout: Layout = LAYOUT) -> SessionStore:
    store = SessionStore(directory, limit)
    store.attach(layout, pool)
    return store


def written(directory: Path, *lengths: int, lag: int = 0) -> None:
    """Checkpoints of IDS at these lengths, as one engine leaves them."""
    pool, before = Pool(), None
    store = opened(directory, pool)
    for length in lengths:
        before = checkpoint(pool, IDS[:length], before, lag)
        store.offer(before)
    store.close()


def files(directory: Path) -> list[Path]:
    """Session files, the shortest conversation first."""
    return sorted(directory.glob("*.session"), key=lambda path: read_header(path).position)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in many batches, each while the one before is used."""
    monkeypatch.setattr("jubako.engine.saved.file.BATCH", 3)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "jubako")
    yield


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_what_was_written_is_found_by_the_next_engine(tmp_path: Path, lag: int) -> None:
    written(tmp_path, 20, 21, 30, 90, lag=lag)
    pool = Pool()
    store = opened(tmp_path, pool)
    for asked, length in [(100, 90), (90, 30), (30, 21), (21, 20), (20, 0)]:
        assert store.find(IDS[:asked], 0) == length
        state = store.load(IDS[:asked])
        assert (state.position if state else 0) == length
        if state:
            assert is_right(pool, state, IDS) and state.draft_position == length - lag
            assert all(pool.pages.holders(page) == 1 for page in state.pages)
            pool.pages.release(state.pages)
    assert store.find(IDS, 90) == 0
    assert pool.pages.free == pool.pages.count
    store.close()


def test_a_file_holds_only_the_pages_that_its_parent_lacks(tmp_path: Path) -> None:
    written(tmp_path, 40, 80)
    first, second = (read_header(path) for path in files(tmp_path))
    assert (first.pages, second.first_page, second.pages) == (10, 10, 10)
    assert second.parent == first.digest


def test_pages_that_are_in_memory_are_shared(tmp_path: Path) -> None:
    written(tmp_path, 40, 80)
    pool = Pool()
    store = opened(tmp_path, pool)
    known = checkpoint(pool, IDS[:40])
    state = store.load(IDS, known)
    assert state is not None and is_right(pool, state, IDS) and state.pages[:10] == known.saved.pages
    assert pool.pages.count - pool.pages.free == 20
    store.close()


def test_other_models_files_are_ignored_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, 40)
    for layout in (replace(LAYOUT, key=bytes(32)), replace(LAYOUT, page_bytes=25), replace(LAYOUT, context=30)):
        pool = Pool()
        store = opened(tmp_path, pool, layout=layout)
        assert store.find(IDS, 0) == 0 and store.load(IDS) is None
        assert store.figures()["entries"] == 0 and store.figures()["bytes"] > 0
        store.close()
    assert len(files(tmp_path)) == 1
    assert "made with another layout" in caplog.text


def damaged(content: bytes, kind: str, place: int, value: int) -> bytes:
    """The content with one byte changed, cut at `place`, or longer."""
    if kind == "cut":
        return content[:place]
    if kind == "add":
        return content + bytes(value)
    return content[:place] + bytes(b ^ value for b in content[place : place + 1]) + content[place + 1 :]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_never_trusted(tmp_path: Path, quiet: None, data: st.DataObject) -> None:
    """Flipped bytes, cut and added ends, files in each other's place, before the start or while it runs."""
    directory = tmp_path / str(time.monotonic_ns())
    written(directory, 10, 41, 70)
    early = data.draw(st.booleans())
    store = opened(directory, pool := Pool()) if early else None
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(files_by_name(directory)))
        kind = data.draw(st.sampled_from(["flip", "header", "cut", "add", "swap", "gone"]))
        size = path.stat().st_size
        place = data.draw(st.integers(0, HEADER_BYTES if kind == "header" else max(0, size - 1)))
        if kind == "swap":
            path.write_bytes(data.draw(st.sampled_from(files_by_name(directory))).read_bytes())
        elif kind == "gone":
            path.unlink()
        else:
            path.write_bytes(damaged(path.read_bytes(), kind, place, data.draw(st.integers(1, 255))))
        if not files_by_name(directory):
            break
    store = store or opened(directory, pool := Pool())
    state = store.load(IDS)
    assert state is None or is_right(pool, state, IDS)
    assert pool.pages.count - pool.pages.free == (len(state.pages) if state else 0)
    store.close()


def files_by_name(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.session"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.integers(0, 15), value=st.integers(0, 2**64 - 1), small=st.integers(0, 200))
def test_a_lying_header_with_a_right_checksum_is_refused_or_right(
    tmp_path: Path, quiet: None, field: int, value: int, small: int
) -> None:
    """Counts and lengths of any size: nothing is allocated by them, and what loads is what was saved."""
    from jubako.engine.saved import file as session_file

    directory = tmp_path / str(time.monotonic_ns())
    written(directory, 41, 70)
    path = files(directory)[1]
    packed = path.read_bytes()
    values = list(session_file._HEADER.unpack(packed[: session_file._HEADER.size]))
    changed = values[2 + field]
    if isinstance(changed, bytes):
        values[2 + field] = bytes([changed[0] ^ 1, *changed[1:]])
    else:
        values[2 + field] = min(small if value % 2 else value, 2**32 - 1 if field >= 12 else 2**64 - 1)
    header = session_file._HEADER.pack(*values)
    path.write_bytes(header + session_file._CHECKED.pack(session_file.zlib.crc32(header)) + packed[HEADER_BYTES:])
    store = opened(directory, pool := Pool())
    state = store.load(IDS)
    assert state is not None
    assert is_right(pool, state, IDS) or _harmless(state.position, values[2 + field], changed, field)
    store.close()


def _harmless(position: int, value: object, before: object, field: int) -> bool:
    """A draft position may be any in the text: it decides how good drafts are, never the text."""
    return field == 4 and position == 70 and isinstance(value, int) and value <= 70


def test_files_that_name_each_other_are_no_chain(tmp_path: Path, quiet: None) -> None:
    """The first claims to go on from the second, as the second does from it; all checksums are right."""
    from jubako.engine.saved import file as session_file

    written(tmp_path, 41, 70)
    first, second = files(tmp_path)
    packed = first.read_bytes()
    lying = replace(read_header(first), parent=read_header(second).digest, parent_position=40)
    first.write_bytes(session_file._packed(lying) + packed[HEADER_BYTES:])
    store = opened(tmp_path, Pool())
    assert store.load(IDS) is None
    store.close()


def test_a_file_that_ends_early_or_is_foreign_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, 41)
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "holiday.session").write_bytes(b"JPEG" * 100)
    (tmp_path / "notes.txt").write_text("hello")
    store = opened(tmp_path, Pool())
    assert store.load(IDS) is None
    assert "and says" in caplog.text and "does not begin like a session file" in caplog.text
    assert "notes" not in caplog.text
    store.close()
    with pytest.raises(DamagedFile):
        read_header(tmp_path / "holiday.session")


def test_the_directory_stays_within_its_limit(tmp_path: Path) -> None:
    """Over many conversations; a file is never removed before those that build on it."""
    rng = np.random.default_rng(3)
    limit = 12_000
    pool = Pool()
    store = opened(tmp_path, pool, limit)
    for _ in range(60):
        ids = conversation(int(rng.integers(12)))
        length = int(rng.integers(50, 300))
        one = checkpoint(pool, ids[:length])
        store.offer(one)
        store.drain()
        pool.pages.release(one.saved.pages)
        assert sum(path.stat().st_size for path in files(tmp_path)) == store.figures()["bytes"] <= limit
    names = {read_header(path).digest for path in files(tmp_path)}
    assert all(read_header(path).parent in names | {bytes(32)} for path in files(tmp_path))
    assert len(names) > 3
    store.close()


def test_what_is_too_large_or_comes_too_fast_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    store = opened(tmp_path, pool, limit=100)
    one = checkpoint(pool, IDS)
    store.offer(one)
    store.drain()
    assert files(tmp_path) == [] and not one.busy
    monkeypatch.setattr(store, "_write", lambda checkpoint: time.sleep(0.02))
    offered: list[Checkpoint] = [checkpoint(pool, IDS[: 1 + i]) for i in range(30)]
    for one in offered:
        store.offer(one)
    assert store.figures()["skipped"] == 30 - sum(one.busy for one in offered) > 0
    store.close()
    assert not any(one.busy for one in offered)


def test_what_users_wrote_is_for_their_eyes_only(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "sessions"
    written(directory, 40)
    assert directory.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(directory))


def test_a_full_disk_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool()
    store = opened(tmp_path, pool)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        store.offer(one := checkpoint(pool, IDS))
        store.drain()
    assert "No space left" in caplog.text and not one.busy
    assert list(tmp_path.iterdir()) == []
    store.offer(one)
    store.close()
    assert len(files(tmp_path)) == 1


def test_a_directory_that_is_gone_is_made_again(tmp_path: Path) -> None:
    """What was in it has to be written again."""
    pool, folder = Pool(), tmp_path / "sessions"
    store = opened(folder, pool)
    store.offer(one := checkpoint(pool, IDS))
    store.drain()
    written = files(folder)
    shutil.rmtree(folder)
    store.offer(one)
    store.close()
    assert files(folder) == written and len(written) == 1


def test_a_directory_that_can_not_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(jubako.MachineError, match="sessions can't be kept in"):
        opened(tmp_path / "file" / "sessions", Pool())


def test_the_default_directory_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_directory() == Path("/somewhere/jubako/sessions")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_directory() == Path("/home/me/.cache/jubako/sessions")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user whom the system does not know
    assert default_directory() == Path("/nonexistent/.cache/jubako/sessions")


def test_killed_at_any_moment_it_leaves_whole_files(tmp_path: Path, quiet: None) -> None:
    """A process that writes is killed eight times; after each, whatever is found is right."""
    rng = np.random.default_rng()
    writer = Path(__file__).with_name("store_writer.py")
    left_behind = found = 0
    for seed in range(8):
        process = subprocess.Popen([sys.executable, str(writer), str(tmp_path), str(seed)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(float(rng.uniform(0.01, 0.25)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        left_behind += len(list(tmp_path.glob("*.tmp")))
        pool = Pool()
        store = opened(tmp_path, pool)
        assert list(tmp_path.glob("*.tmp")) == [], "what was not finished is removed"
        assert store.figures()["entries"] == len(files(tmp_path))
        for number in range(40):
            ids = conversation(number)
            state = store.load(ids)
            if state is not None:
                found += 1
                assert is_right(pool, state, ids)
                pool.pages.release(state.pages)
        store.close()
    assert found > 20


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    """With the small model: the same tokens as without, and only the end of the prompt is read."""
    model = jubako.load(SMALL, context=4096)
    prompt = words(np.random.default_rng(1), 500)
    one = request("a", prompt, 12, temperature=0.8, seed=5, keep=(300,))
    scheduler = Scheduler(model, store=SessionStore(tmp_path))
    first = run(scheduler, one)
    scheduler.close()
    answer = first.tokens("a")
    for follow_up, cached in [(prompt, 300), ((*prompt[:300], 5, 6), 300), ((*prompt, *answer, 1, 2), 511)]:
        scheduler = Scheduler(model, store=SessionStore(tmp_path))
        again = run(scheduler, request("b", follow_up, 12, temperature=0.8, seed=5))
        assert again.reading("b")[0].cached == cached
        want = list(model.generate(follow_up, max_tokens=12, temperature=0.8, seed=5, stop_ids=(), drafts=0))
        assert again.tokens("b") == want
        scheduler.close()
    other = jubako.load(SMALL[0], context=4096, kv_bits=16)
    scheduler = Scheduler(other, store=SessionStore(tmp_path))
    assert run(scheduler, one).reading("a")[0].cached == 0, "16-bit keys and values are another layout"
    scheduler.close()


def test_a_conversations_first_and_last_wishes_go_to_disk(tmp_path: Path) -> None:
    """And the end of the answer; what lies between stays in memory only."""
    model = jubako.load(SMALL, context=4096)
    scheduler = Scheduler(model, store=SessionStore(tmp_path))
    prompt = words(np.random.default_rng(2), 400)
    run(scheduler, request("a", prompt, 3, keep=(90, 180, 270)))
    assert scheduler.status()["prefix"]["entries"] == 5
    scheduler.close()
    assert [read_header(path).position for path in files(tmp_path)] == [90, 270, 402]
    assert scheduler.status()["kv"]["tokens"] == 0, "pages are given back"
