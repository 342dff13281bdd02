"""The native store's frames: what is held stays, what is used least goes, and every address leads to the file's bytes.

Layers are asked through `experts` with weights so small that products cost nothing, float32 matrices.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jubako import _cpu

EXPERTS, HIDDEN, SIZE = 8, 16, 8
PART = SIZE * HIDDEN * 4


class Stored:
    """Layers of float32 experts in a file, and what plain numpy makes of them."""

    def __init__(self, folder: Path, frames: int, layers: int = 2, threads: int = 4) -> None:
        generator = np.random.default_rng(3)
        self.stacks = [
            (
                generator.standard_normal((EXPERTS, SIZE, HIDDEN), np.float32),
                generator.standard_normal((EXPERTS, SIZE, HIDDEN), np.float32),
                generator.standard_normal((EXPERTS, HIDDEN, SIZE), np.float32),
            )
            for _ in range(layers)
        ]
        self.path = folder / "experts.bin"
        self.path.write_bytes(b"x" * 100 + b"".join(part.tobytes() for stack in self.stacks for part in stack))
        described = [
            [(0, 100 + (3 * layer + part) * EXPERTS * PART, PART, PART) for part in range(3)] for layer in range(layers)
        ]
        reader = _cpu.Reader([str(self.path)], threads)
        self.store = _cpu.ExpertStore(reader, described, EXPERTS, [frames] if frames else [])
        self.shared = (
            generator.standard_normal((1, HIDDEN), np.float32),
            *(
                generator.standard_normal(shape, np.float32)
                for shape in ((SIZE, HIDDEN), (SIZE, HIDDEN), (HIDDEN, SIZE))
            ),
        )

    def ask(self, layer: int, ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """What the store gives, and what `_cpu.experts` gives with everything in memory."""
        chosen = np.array(ids, np.int32)
        generator = np.random.default_rng(chosen.size)
        x = generator.standard_normal((len(ids), HIDDEN), np.float32)
        weights = generator.random(chosen.shape, np.float32)
        gate, up, down = (_weight(part) for part in self.stacks[layer])
        shared = [_weight(part) for part in self.shared]
        got = self.store.experts(layer, gate, up, down, x, chosen, weights, *shared)
        return got, _cpu.experts(gate, up, down, x, chosen, weights, *shared)

    def there(self, layer: int) -> set[int]:
        return set(np.flatnonzero(self.store.addresses[layer, :, 0]).tolist())


def _weight(values: np.ndarray) -> _cpu.Weight:
    return _cpu.Weight(values.view(np.uint8), 0)


def test_the_bits_of_experts_in_memory(tmp_path: Path) -> None:
    """Fewer frames than a layer has experts: prompts and steps, absent ids, each expert in turn."""
    stored = Stored(tmp_path, frames=3)
    generator = np.random.default_rng(0)
    for tokens in (1, 3, 40):
        for layer in (0, 1):
            ids = np.argsort(generator.random((tokens, EXPERTS)), axis=1)[:, :3].tolist()
            got, wanted = stored.ask(layer, ids)
            assert np.array_equal(got, wanted)
    for ids in ([[2, -1, 5], [-1, -1, -1]], [[-1, -1, -1]]):
        got, wanted = stored.ask(0, ids)
        assert np.array_equal(got, wanted)


def test_all_of_them_fit(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=0)
    assert stored.store.whole and stored.there(0) == set()
    for layer in (0, 1):
        stored.store.load(layer)
        got, wanted = stored.ask(layer, [[0, 7], [3, 1]])
        assert np.array_equal(got, wanted)
        for part, values in enumerate(stored.stacks[layer]):
            raw = stored.store.part(layer, part, values.nbytes)
            assert np.array_equal(raw, values.reshape(-1).view(np.uint8))
            assert stored.store.addresses[layer, 2, part] == raw.ctypes.data + 2 * PART


def test_what_is_used_least_goes(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=3)
    for _ in range(3):
        stored.ask(0, [[1, 2]])
    stored.ask(1, [[4, 5]])
    assert stored.there(0) == {1, 2} or len(stored.there(0) | {8 + e for e in stored.there(1)}) == 3
    for _ in range(9):  # one frame is left for all others
        stored.ask(0, [[1, 2]])
        stored.ask(1, [[6]])
        assert {1, 2} <= stored.there(0)


def test_old_uses_fade(tmp_path: Path) -> None:
    """An expert used often long ago makes room for one used now and then."""
    stored = Stored(tmp_path, frames=2)
    for _ in range(20):
        stored.ask(0, [[1, 2]])
    for _ in range(640):
        stored.store.step()
    stored.ask(1, [[3, 4]])
    stored.ask(1, [[3, 4]])
    assert stored.there(1) == {3, 4}
    _, missed, _, _ = stored.store.counts
    stored.ask(1, [[3, 4]])
    assert stored.store.counts[1] == missed


def test_a_prompt_does_not_drive_out_what_it_reads(tmp_path: Path) -> None:
    """Reading all experts over and over finds as many as there are frames: those that stay are not exchanged."""
    stored = Stored(tmp_path, frames=6, layers=1)
    prompt = [[t % EXPERTS, (t + 1) % EXPERTS] for t in range(24)]
    stored.ask(0, prompt)
    asked, missed, _, _ = stored.store.counts
    for _ in range(5):
        stored.store.step()
        stored.ask(0, prompt)
    again = stored.store.counts
    assert again[0] - asked == 5 * EXPERTS
    assert again[1] - missed <= 5 * (EXPERTS - 6 + 1)


def test_expected_experts_are_read_ahead(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=4)
    stored.store.expect(1, np.array([2, 6], np.int32))
    for _ in range(200):
        if stored.there(1) == {2, 6}:
            break
        time.sleep(0.005)
    assert stored.there(1) == {2, 6}
    got, wanted = stored.ask(1, [[6, 2]])
    assert np.array_equal(got, wanted)
    assert stored.store.counts == (2, 0, 2, 0)


def test_a_file_cut_while_in_use(tmp_path: Path) -> None:
    """What is in memory goes on working; what is not says why; and when the file is back, so is everything."""
    stored = Stored(tmp_path, frames=4)
    stored.ask(0, [[0, 1]])
    whole = stored.path.read_bytes()
    os.truncate(stored.path, 4096)
    with pytest.raises(
        _cpu.ReadError, match=r"experts\.bin: reading .* failed: the file ends after .* cut while in use"
    ):
        stored.ask(1, [[6, 7]])
    got, wanted = stored.ask(0, [[1, 0]])
    assert np.array_equal(got, wanted)
    time.sleep(0.1)  # reads of the request that failed may still be under way, and fail whoever asks for the same
    with stored.path.open("r+b") as file:
        file.write(whole)
    got, wanted = stored.ask(1, [[6, 7]])
    assert np.array_equal(got, wanted)


def test_loading_all_from_a_file_that_was_cut(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=0)
    os.truncate(stored.path, 5000)
    with pytest.raises(_cpu.ReadError, match="the file ends"):
        stored.store.load(1)


def test_a_store_goes_while_it_reads(tmp_path: Path) -> None:
    for _ in range(20):
        stored = Stored(tmp_path, frames=8, threads=1)
        stored.store.expect(0, np.arange(8, dtype=np.int32), True)
        del stored


def test_what_is_held_stays(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=3)
    assert stored.store.hold(0, np.array([5, 1], np.int32)) == 2
    for expert in (0, 2, 3, 4):
        stored.ask(1, [[expert]])
        assert {1, 5} <= stored.there(0)
    assert stored.store.hold(1, np.array([6, 7], np.int32)) == 1  # one frame was left
    stored.store.release(0, np.array([5, 1], np.int32))
    stored.store.release(1, np.array([6], np.int32))
    stored.ask(1, [[0, 1, 2]])
    assert len(stored.there(0)) + len(stored.there(1)) == 3


class Asking:
    """A GPU's side of the words that both see, for two layers of a store."""

    def __init__(self, stored: Stored, source: _cpu.StoreSource) -> None:
        self.words, self.ids = np.zeros(112, np.uint32), np.full((16, 2), -1, np.int32)
        self.x = np.random.default_rng(5).standard_normal((16, HIDDEN), np.float32)
        self.rows = np.zeros((32, HIDDEN), np.float32)
        addresses = stored.store.addresses
        layers = [_cpu.ExpertLayer([0, 0, 0], SIZE, HIDDEN, SIZE, addresses[layer]) for layer in (0, 1)]
        self.threads = _cpu.ExpertThreads(self.words, self.ids, self.x, self.rows, layers)
        self.threads.set_source(source)
        self.threads.begin()

    def ask(self, layer: int, chosen: list[list[int]]) -> None:
        """Ask, and wait for the answer."""
        self.ids[: len(chosen)] = chosen
        number = self.words[0] + 1
        self.words[48:50] = layer, len(chosen)
        self.words[0] = number
        wait(lambda: self.words[16] == number)
        assert self.words[32] == 0

    def close(self) -> None:
        self.threads.end()
        self.threads.close()


def alone(stored: Stored, layer: int, x: np.ndarray, expert: int) -> np.ndarray:
    """What an expert makes of one token x [1, HIDDEN]."""
    gate, up, down = (_weight(part) for part in stored.stacks[layer])
    one: np.ndarray = _cpu.experts(gate, up, down, x, np.array([[expert]], np.int32), np.ones((1, 1), np.float32))
    return one[0]


def wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not done() and time.monotonic() < until:
        time.sleep(0.001)
    assert done()


def test_threads_that_answer_a_gpu_get_experts_from_the_file(tmp_path: Path) -> None:
    """Requests through the words that both sides see, for more experts than there are frames."""
    stored = Stored(tmp_path, frames=3)
    asking = Asking(stored, _cpu.StoreSource(stored.store))
    for layer, chosen in [(0, [1, 2]), (1, [3, 0]), (0, [4, 5]), (0, [2, 7])]:
        asking.ask(layer, [chosen])
        for rank, expert in enumerate(chosen):
            assert np.array_equal(asking.rows[rank], alone(stored, layer, asking.x[:1], expert))
    asking.close()
    assert stored.store.error == ""


def test_what_the_next_layer_may_ask_for_is_read_ahead(tmp_path: Path) -> None:
    """What the next layer's router makes of the tokens that a request is about, and of no others."""
    stored = Stored(tmp_path, frames=12)
    router = np.random.default_rng(6).standard_normal((EXPERTS, HIDDEN), np.float32)
    asking = Asking(stored, _cpu.StoreSource(stored.store, [_weight(np.zeros_like(router)), _weight(router)], 2))
    asking.ask(0, [[1, 2], [-1, -1], [-1, 5]])
    for use, (token, expert) in {0: (0, 1), 1: (0, 2), 5: (2, 5)}.items():  # guessing meanwhile changes nothing
        assert np.array_equal(asking.rows[use], alone(stored, 0, asking.x[token : token + 1], expert))
    logits = asking.x[:3] @ router.T
    wanted = {int(expert) for token in (0, 2) for expert in np.argsort(-logits[token])[:2]}
    wait(lambda: stored.there(1) == wanted)
    asking.ask(1, [sorted(wanted)[:2]])
    asked, missed, expected, in_vain = stored.store.counts
    assert (asked, missed, expected, in_vain) == (5, 3, len(wanted), 0)
    assert not stored.there(0) - {1, 2, 5}, "the last layer has none after it"
    asking.close()


def test_what_the_gpu_has_itself_is_not_read_ahead(tmp_path: Path) -> None:
    """Slots are looked at when it is guessed, not when the source was made."""
    stored, slots = Stored(tmp_path, frames=12), np.full((2, EXPERTS), -1, np.int32)
    router = np.random.default_rng(6).standard_normal((EXPERTS, HIDDEN), np.float32)
    routers = [_weight(np.zeros_like(router)), _weight(router)]
    asking = Asking(stored, _cpu.StoreSource(stored.store, routers, 2, slots))
    first, second = np.argsort(-(router @ asking.x[0]))[:2].tolist()
    slots[1, first] = 7
    asking.ask(0, [[1, 2]])
    wait(lambda: stored.there(1) == {second})
    asking.close()
    with pytest.raises(ValueError, match="slots"):
        _cpu.StoreSource(stored.store, routers, 2, slots[:1])


def test_guesses_that_do_not_come_true_are_not_read_any_more(tmp_path: Path) -> None:
    """And are again when they would have: what is not read is judged, too."""
    stored, rng = Stored(tmp_path, frames=4), np.random.default_rng(7)
    router = rng.standard_normal((EXPERTS, HIDDEN), np.float32)
    asking = Asking(stored, _cpu.StoreSource(stored.store, [_weight(np.zeros_like(router)), _weight(router)], 2))

    def expected(rounds: int, asked: int) -> int:
        """Experts read ahead in so many passes whose second layer asks for those that stand `asked` in the order."""
        before = stored.store.counts[2]
        for _ in range(rounds):
            asking.x[:] = rng.standard_normal(asking.x.shape, np.float32)
            order = np.argsort(-(router @ asking.x[0])).tolist()
            asking.ask(0, [[1, -1]])
            asking.ask(1, [order[asked : asked + 2]])
        return int(stored.store.counts[2] - before)

    expected(20, 4)
    assert expected(20, 4) == 0
    expected(40, 0)
    assert expected(20, 0) > 0
    asking.close()


def test_routers_that_do_not_fit(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=2)
    right = _weight(np.zeros((EXPERTS, HIDDEN), np.float32))
    for routers, chosen in (([right], 2), ([right, _weight(np.zeros((3, HIDDEN), np.float32))], 2), ([right] * 2, 0)):
        with pytest.raises(ValueError, match=r"router|chosen"):
            _cpu.StoreSource(stored.store, routers, chosen)


def test_refuses_what_is_not_there(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=2)
    with pytest.raises(ValueError, match="no such expert"):
        stored.ask(0, [[8]])
    with pytest.raises(ValueError, match="no such layer"):
        stored.store.expect(2, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="room for all"):
        stored.store.load(0)


def test_memory_that_others_hold(tmp_path: Path) -> None:
    stored = Stored(tmp_path, frames=2)
    assert stored.store.hold(0, np.array([0, 1], np.int32)) == 2
    with pytest.raises(_cpu.ReadError, match="others hold all the memory"):
        stored.ask(1, [[3]])
    stored.store.release(0, np.array([0, 1], np.int32))
    got, wanted = stored.ask(1, [[3]])
    assert np.array_equal(got, wanted)
