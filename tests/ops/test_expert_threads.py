"""Threads that answer a GPU through words that both see: requests of few experts, and guesses of what comes next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from block_rows import rows_of

from jubako import _cpu
from jubako.ops.gpu import away
from jubako.ops.gpu.host import addresses_of
from jubako.quant import BY_NAME

EXPERTS, SIZE, HIDDEN, CHOSEN = 6, 80, 320, 3  # the last block of 32 hidden values is half full


class Side:
    """A GPU's side of the words, for two layers."""

    def __init__(self, kind: str) -> None:
        type, cols = BY_NAME[kind], 96
        shapes = ((SIZE, HIDDEN), (SIZE, HIDDEN), (HIDDEN, cols))
        self.blocks = [
            [rows_of(kind, (EXPERTS, rows), width, 3 * layer + part) for part, (rows, width) in enumerate(shapes)]
            for layer in (0, 1)
        ]
        self.type = type.id
        layers = [_cpu.ExpertLayer([type.id] * 3, SIZE, HIDDEN, cols, addresses_of(stack)) for stack in self.blocks]
        self.words, self.ids = np.zeros(away.WORDS, np.uint32), np.full((16, CHOSEN), -1, np.int32)
        self.x = np.random.default_rng(5).standard_normal((16, HIDDEN), np.float32)
        self.rows = np.zeros((16 * CHOSEN, HIDDEN), np.float32)
        self.threads = _cpu.ExpertThreads(self.words, self.ids, self.x, self.rows, layers)
        self.threads.begin()

    def ask(self, layer: int, chosen: list[list[int]], read: int = 0) -> None:
        """Ask about x with the number `read`, 0: as it is now, and wait for the answer."""
        self.ring(layer, chosen, read)
        wait(lambda: bool(self.words[away.DONE] == self.words[away.BELL]))
        assert self.words[away.ERROR] == 0

    def ring(self, layer: int, chosen: list[list[int]], read: int = 0) -> None:
        self.ids[: len(chosen)], self.rows[:] = chosen, 0
        self.words[[away.LAYER, away.TOKENS, away.READ]] = layer, len(chosen), read
        self.words[away.BELL] += 1

    def send(self, layer: int, tokens: int, number: int) -> None:
        """That x is there."""
        self.words[[away.CAME_LAYER, away.CAME_TOKENS]] = layer, tokens
        self.words[away.CAME : away.CAME + tokens] = number

    def name(self, layer: int, experts: list[int]) -> None:
        """Guess what a layer will ask for."""
        self.words[away.NAMES : away.NAMES + len(experts)] = np.array(experts, np.int64).astype(np.uint32)
        self.words[away.NAMED_LAYER], self.words[away.NAMED_COUNT] = layer, len(experts)
        self.words[away.NAMED] += 1

    def wanted(self, layer: int, token: int, expert: int) -> np.ndarray:
        """What an expert makes of a token."""
        gate, up, down = (_cpu.Weight(stack, self.type) for stack in self.blocks[layer])
        one: np.ndarray = _cpu.experts(
            gate, up, down, self.x[token : token + 1], np.array([[expert]], np.int32), np.ones((1, 1), np.float32)
        )
        return one[0]


def wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not done() and time.monotonic() < until:
        time.sleep(0.0005)
    assert done()


@pytest.fixture(params=["Q8_0", "F32"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    before, made = _cpu.threads(), Side(request.param)
    yield made
    made.threads.end()
    made.threads.close()
    _cpu.set_threads(before)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_do_not_depend_on_how_many_threads_share_them(side: Side, count: int) -> None:
    """Of one token and of several, with experts that some of them share; more threads than there are pieces, too."""
    _cpu.set_threads(count)
    for layer, chosen in [(0, [[4, -1, 2]]), (1, [[0, -1, -1]]), (1, [[3, 5, -1], [5, -1, 3], [-1, 5, 1]])]:
        side.ask(layer, chosen)
        for token, experts in enumerate(chosen):
            for rank, expert in enumerate(experts):
                row = side.rows[token * CHOSEN + rank]
                want = side.wanted(layer, token, expert) if expert >= 0 else np.zeros(HIDDEN, np.float32)
                assert row.tobytes() == want.tobytes()


def test_a_guess_is_heard_and_answers_stay_the_same(side: Side) -> None:
    side.name(1, [5, 0])
    wait(lambda: side.threads.named == 2)
    side.ask(1, [[5, 2, -1]])
    assert side.rows[0].tobytes() == side.wanted(1, 0, 5).tobytes()
    side.name(0, [1])
    wait(lambda: side.threads.named == 3)
    assert side.threads.requests == 1 and side.words[away.ERROR] == 0


def test_what_they_read_is_taken_when_it_comes(side: Side) -> None:
    """Before the bell or after it; what was there before is not taken for it."""
    rng = np.random.default_rng(8)
    for number, late in [(1, False), (3, True), (5, False)]:
        side.x[:] = rng.standard_normal(side.x.shape, np.float32)
        if not late:
            side.send(1, 2, number)
            time.sleep(0.002)
        side.ring(1, [[4, -1, -1], [-1, 4, 1]], number)
        if late:
            time.sleep(0.005)
            assert side.words[away.DONE] != side.words[away.BELL]
            side.words[away.CAME] = number  # of the first token alone
            time.sleep(0.005)
            assert side.words[away.DONE] != side.words[away.BELL]
            side.send(1, 2, number)
        wait(lambda: bool(side.words[away.DONE] == side.words[away.BELL]))
        assert side.words[away.ERROR] == 0
        assert side.rows[0].tobytes() == side.wanted(1, 0, 4).tobytes()
        assert side.rows[CHOSEN + 1].tobytes() == side.wanted(1, 1, 4).tobytes()
        assert side.rows[CHOSEN + 2].tobytes() == side.wanted(1, 1, 1).tobytes()


def test_what_they_read_may_come_in_vain(side: Side) -> None:
    """A layer that lacks nothing does not ask; the next one's is taken, or what comes with a request."""
    side.send(0, 1, 1)
    time.sleep(0.002)
    side.x *= 2
    side.send(1, 1, 3)
    side.ask(1, [[2, -1, -1]], 3)
    assert side.rows[0].tobytes() == side.wanted(1, 0, 2).tobytes()
    side.x *= 2
    side.ask(0, [[2, -1, -1]])
    assert side.rows[0].tobytes() == side.wanted(0, 0, 2).tobytes()


@pytest.mark.parametrize(("layer", "experts"), [(2, [1]), (0, [EXPERTS]), (0, [-1]), (0, [1] * (away.MOST_NAMES + 1))])
def test_a_guess_that_means_nothing_is_left_alone(side: Side, layer: int, experts: list[int]) -> None:
    """One may be read while the next is written."""
    side.name(layer, experts)
    side.ask(0, [[1, -1, -1]])
    side.name(0, [3])
    wait(lambda: side.threads.named == 1)
    assert side.rows[0].tobytes() == side.wanted(0, 0, 1).tobytes()
