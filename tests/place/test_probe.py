"""What is measured here: each figure is one that this machine can have, and nothing is left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from place.planned import machine

import jubako._cpu as _cpu
from jubako.errors import FileFormatError, MachineError
from jubako.place import memory, probe
from jubako.place.machine import VERSION, Machine
from jubako.place.probe import cpu, disk
from jubako.place.probe.touch import BLOCK, touch
from jubako.quant import block_type


@pytest.fixture(scope="module")
def pool() -> np.ndarray:
    return cpu.pool(16 * 10 * 700_000)  # just enough for experts of two bits


def test_every_type_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BUDGET", 0.0)
    monkeypatch.setattr(cpu, "ROWS", 4096)
    monkeypatch.setattr(cpu, "PROMPT", 4)
    for name in ("HIDDEN", "SIZE"):
        monkeypatch.setattr(cpu, name, 256)
    pool = cpu.pool(20 * 3 * 256 * 256 * 4)  # experts of four bytes a weight
    for name in cpu.TYPES:
        kernel = cpu.kernel(name, pool, 2)
        assert set(kernel.experts) == ({1, 2} if name == cpu.REFERENCE else {2})
        rates = (*kernel.experts.values(), kernel.linear, kernel.experts_macs, kernel.linear_macs)
        assert all(1e6 < rate < 1e13 for rate in rates), name


def test_experts_are_walked_through_and_counted(pool: np.ndarray) -> None:
    kind = block_type("IQ2_XXS")
    experts = cpu.Experts(kind, pool)
    size = (2 * cpu.SIZE * cpu.HIDDEN + cpu.HIDDEN * cpu.SIZE) // kind.weights * kind.bytes
    assert experts.expert_bytes == size
    assert experts.count == len(pool) // size // 10 * 10
    assert experts.step() == 10 * size
    assert experts.prompt() == cpu.PROMPT * 10 * 3 * cpu.SIZE * cpu.HIDDEN


def test_a_rate_is_the_best_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, or as many as the budget allows; what comes first only warms up."""
    now = 0.0

    def work() -> int:
        nonlocal now
        now += next(lasts)
        return 10

    monkeypatch.setattr(cpu, "time", SimpleNamespace(perf_counter=lambda: now))
    for budget, rate in ((8.0, 5.0), (10.0, 10.0), (0.1, 2.5)):
        lasts = iter([0.5, 4.0, 2.0, 3.0, 1.0])
        assert cpu.rate(work, budget) == rate


def test_a_disk_that_is_slower_than_the_probe_has_a_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "time", SimpleNamespace(perf_counter=count().__next__))
    found = disk.measure(tmp_path, seconds=0.01, scratch=4 << 20)
    assert found.sequential > 0 and found.random_reads > 0 and found.latency > 0


def test_threads_are_put_back() -> None:
    before = _cpu.threads()
    with cpu.running_on(1):
        assert _cpu.threads() == 1
    assert _cpu.threads() == before
    assert cpu.thread_counts(1) == [1] and cpu.thread_counts(6) == [1, 2, 4, 6]
    assert cpu.thread_counts(16) == [1, 2, 4, 8, 16]


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.measure(tmp_path, seconds=0.05, scratch=4 << 20)
    assert 1e6 < found.sequential < 1e12 and 10 < found.random_reads < 1e8 and 1e-7 < found.latency < 1
    assert found.path == str(tmp_path) and found.free > 0
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(8 << 20))
    assert disk.measure(file, seconds=0.05, scratch=4 << 20).path == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_disk_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="can't be measured"):
        disk.measure(tmp_path / "nowhere" / "x", seconds=0.01)
    with pytest.raises(MachineError, match="GB are free"):
        disk.measure(tmp_path, scratch=1 << 50)


def test_the_card_kernel_reads_all_of_its_memory() -> None:
    if torch.cuda.is_available():
        pytest.skip("runs in Triton's interpreter")
    data = torch.randint(0, 256, (BLOCK * 11 + 64,), dtype=torch.uint8)
    seen = touch(data, 3).numpy()
    words = data[: BLOCK * 11].view(torch.int32).numpy()
    assert len(seen) == 3 and np.bitwise_xor.reduce(seen) == np.bitwise_xor.reduce(words)


def test_a_whole_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUBAKO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu, "BUDGET", 0.0)
    monkeypatch.setattr(cpu, "SMALL_POOL", 130 << 20)
    monkeypatch.setattr(probe, "_devices", lambda: [])
    shares: list[float] = []
    made = probe.probe(tmp_path, lambda what, share: shares.append(share), ("IQ3_XXS", "Q8_0"), quick=True)
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    assert set(made.kernels) == {"IQ3_XXS", "Q8_0"} and made.cards == () and made.together is None
    assert 0 < made.ram_free <= made.ram_limit and made.measured.startswith("20")
    assert probe.stored(made.identity) is None
    path = probe.store(made)
    assert probe.stored(made.identity) == made
    assert probe.this_machine(["Q8_0"], tmp_path).kernels == made.kernels
    path.write_text(path.read_text()[:100])
    assert probe.stored(made.identity) is None  # damaged: measured anew
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        probe.store(made)
    assert list(path.parent.iterdir()) == [path]  # nothing half written stays


def test_figures_of_another_version_or_shape_are_refused() -> None:
    good = json.loads(json.dumps(machine(1).as_json()))
    assert Machine.from_json(good) == machine(1)
    for wrong in (
        good | {"version": VERSION + 1},
        good | {"kernels": {"Q8_0": {"experts": {"x": 1}}}},
        good | {"disk": 7},
        {key: value for key, value in good.items() if key != "isa"},
        good | {"surprise": 1},
        [good],
        good | {"kernels": {}},
        good | {"ram_read": {}},
        good | {"ram_free": -1},
        good | {"disk": good["disk"] | {"sequential": 0}},
        good | {"cards": [good["cards"][0] | {"read": "fast"}]},
        good | {"cards": [good["cards"][0] | {"mapped": float("nan")}]},
        good | {"ram_limit": {"a": 1}},
        good | {"cards": [good["cards"][0] | {"name": {"a": 1}}]},
        good | {"together": good["together"] | {"experts": {"1": 1e9}}},
        good | {"together": good["together"] | {"kind": [1]}},
        good | {"measured": {"a": 1}},
    ):
        with pytest.raises(FileFormatError, match="figures"):
            Machine.from_json(wrong)


def test_a_type_that_was_not_measured_takes_the_nearest() -> None:
    box = machine()
    box = replace(box, kernels={"IQ3_XXS": box.kernels["Q8_0"], "Q8_0": replace(box.kernels["Q8_0"], linear=7.0)})
    assert box.kernel("F32").linear == 7.0
    assert box.kernel("IQ2_S").linear == 50e9


def test_limits_of_control_groups(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    inner = root / "user.slice" / "box"
    inner.mkdir(parents=True)
    own.write_text("0::/user.slice/box\n")
    assert memory.limits(root, own) == []
    (inner / "memory.max").write_text("8000\n")
    (inner / "memory.current").write_text("5000\n")
    (inner / "memory.stat").write_text("anon 1\ninactive_file 1500\n")
    (inner.parent / "memory.max").write_text("max\n")
    (inner.parent / "memory.current").write_text("9\n")
    (root / "memory.max").write_text("9000\n")
    (root / "memory.current").write_text("9500\n")
    assert memory.limits(root, own) == [(8000, 3500), (9000, 9500)]
    own.write_text("4:memory:/docker/1\n3:cpu:/\n")
    old = root / "memory" / "docker" / "1"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("700\n")
    (old / "memory.usage_in_bytes").write_text("100\n")
    (root / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (root / "memory" / "memory.usage_in_bytes").write_text("1\n")
    assert memory.limits(root, own) == [(700, 100)]
    assert memory.limits(root, tmp_path / "nothing") == []


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limits", lambda: [(1000, 400), (5000, 0)])
    assert memory.total_memory() == 1000 and memory.free_memory() == 600
    assert memory.usable_memory() == 500  # a tenth of the container's stays free
