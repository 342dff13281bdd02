"""What a benchmark of a GPU does around the network: states that are kept, prompts in pieces. Steps are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from measure.networks import narrow

pytest.importorskip("triton")

from jubako.arch.weights import load_network
from jubako.engine.gpu.executor import GpuExecutor
from jubako.files import open_model
from jubako.measure.bench_gpu import GpuBench
from jubako.measure.synth import synth
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
