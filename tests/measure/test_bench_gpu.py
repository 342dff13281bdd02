"""What a benchmark of a GPU does around the network: states that are kept, prompts in pieces. Steps are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from measure.networks import narrow

pytest.importorskip("triton")

import jubako.measure.bench_gpu as bench_module
from jubako.arch.weights import load_network
from jubako.engine.executor import DraftWish, Speculated
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.gpu.step import Steps
from jubako.engine.logits import Logits
from jubako.files import open_model
from jubako.measure.bench_gpu import GpuBench
from jubako.measure.synth import synth
from jubako.ops.gpu.ops import GpuOps
from jubako.ops.gpu.sequence import GpuState

DEPTH = 192


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> GpuBench:
    path = tmp_path_factory.mktemp("saved") / "net.gguf"
    synth(path, narrow(layers=2, draft=True, vocab=320, experts=4, hyper_rank=32, ngram_rows=200))
    network = load_network(open_model([path]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = GpuBench.__new__(GpuBench)  # without the bandwidth of a card
    made.network, made.note, made.generator = network, lambda text: None, np.random.default_rng(0)
    made.executor = GpuExecutor(network, device, context=256, tokens=1024, sequences=3)
    return made


@pytest.fixture(autouse=True)
def no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuExecutor, "step", lambda self, parts: [])


def test_a_state_is_read_from_the_disk(bench: GpuBench, tmp_path: Path) -> None:
    time = bench.from_disk(DEPTH, tmp_path)
    pool = bench.executor.pool
    assert time.size > DEPTH // pool.page_tokens * pool.page_bytes and time.size == sum(
        path.stat().st_size for path in tmp_path.iterdir()
    )
    assert 0 < time.read <= time.first_token and time.write_seconds > 0


def test_a_state_is_resumed_in_memory_and_its_pages_come_back(bench: GpuBench) -> None:
    free = bench.executor.pool.pages.free
    time = bench.resumed(DEPTH)
    assert 0 < time.resume <= time.first_token and time.save > 0
    assert bench.executor.pool.pages.free == free


def test_a_long_prompt_is_timed_at_several_lengths(bench: GpuBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks that end at each length; the two before its end warm up."""
    read: list[tuple[int, int]] = []

    def forward(self: GpuExecutor, ids: list[int], state: GpuState, *, last_only: bool) -> None:
        read.append((state.position, len(ids)))
        state.position += len(ids)

    monkeypatch.setattr(GpuExecutor, "forward", forward)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench.executor, "chunk", 64)
    times = [*bench.long_prompt([250, 128])]
    assert [time.tokens for time in times] == [128, 250] and times[0].seconds < times[1].seconds
    assert read == [(128, 64), (192, 58), (0, 64), (64, 64), (128, 64), (192, 58)]
    assert times[1].tokens_per_second == 250 / times[1].seconds


def test_speculative_steps_are_timed_from_end_to_end(bench: GpuBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What agrees is kept; what a step replays are its graph and that of the drafts behind it, while what they ask the
    CPU for is answered."""
    asked: list[tuple[int, int]] = []
    launched: list[str] = []
    awake = 0

    @contextmanager
    def answered(self: GpuOps) -> Iterator[None]:
        nonlocal awake
        awake += 1
        yield
        awake -= 1

    def speculate(self: GpuExecutor, wishes: list[DraftWish]) -> Speculated:
        [wish] = wishes
        asked.append((wish.next, wish.state.position))
        wish.state.opened([wish.next, 1, 2, 3])
        time.sleep(0.002)
        return Speculated([[1, 2, 3]], [Logits(lambda: np.zeros((4, 320), np.float32), [1, 5, 6, 7])], 0.0)

    def seconds(work: Callable[[], object]) -> float:
        assert awake > 0
        work()
        return 0.008

    monkeypatch.setattr(GpuOps, "awake", answered)
    monkeypatch.setattr(GpuExecutor, "speculate", speculate)
    monkeypatch.setattr(GpuExecutor, "launch_behind", lambda self, width, parts, depth: launched.append("drafts"))
    monkeypatch.setattr(Steps, "run", lambda self, width, whole: launched.append(f"step {width}"))
    monkeypatch.setattr(bench_module, "_seconds", seconds)
    time_ = bench.speculative(24, repeats=8)
    assert time_.milliseconds >= 2 and time_.engine >= 2 and time_.drafting == 8 and time_.device == 1
    assert all(asked[turn] == (5, 24 + 2 * turn) for turn in range(1, 12)), "two columns are kept of each step"
    assert launched == ["step 4", "drafts"] * (len(launched) // 2) and len(launched) > 40
