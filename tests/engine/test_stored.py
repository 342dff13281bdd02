"""The CPU in a budget of memory: the same bits as from the mapped file, whatever has to be read again and again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from jubako import _cpu
from jubako.arch.network import Network
from jubako.arch.weights import load_network
from jubako.engine.cpu import CpuExecutor
from jubako.engine.executor import DraftWish
from jubako.engine.model import load
from jubako.engine.stored import StoredExecutor
from jubako.errors import MachineError
from jubako.files import open_model
from jubako.measure.geometry import network_config
from jubako.measure.synth import synth
from jubako.place import store as stores
from jubako.place.budget import CpuBudget
from jubako.place.resident import expert_layers, routed


def budget(experts: int, context: int = 512) -> CpuBudget:
    return CpuBudget(0, 0, 0, 1 << 28, 0, experts, context, 32)


def small_budget(network: Network, frames: int) -> CpuBudget:
    """Room for about so many experts of each shape."""
    shapes = {tuple(t.nbytes // t.shape[0] for t in routed(experts)) for experts in expert_layers(network)}
    return budget(frames * sum(sum(size // 4096 * 4096 + 8192 for size in shape) for shape in shapes))


@pytest.fixture
def few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LEAST_FRAMES", 5)


@pytest.mark.parametrize("names", [("tiny-mixed.gguf",), ("tiny-bf16.gguf", "tiny-mtp.gguf")])
def test_bits_do_not_depend_on_memory(tiny: Path, few_frames: None, names: tuple[str, ...]) -> None:
    """Prompts, steps, drafts and what they keep: with the mapped file, with everything read, and with a few frames."""
    network = load_network(open_model([tiny / name for name in names]))
    few = StoredExecutor(network, 2, 16, small_budget(network, 7))
    all_read = StoredExecutor(network, 2, 16, budget(1 << 30))
    assert not few.store.whole and all_read.store.whole
    outputs = []
    for executor in (CpuExecutor(network, 2, 16), all_read, few):
        state = executor.new_state(512)
        ids = np.random.default_rng(1).integers(0, network.config.vocabulary, 60).tolist()
        rows = [executor.forward(ids[:40], state, last_only=False)]
        rows += [np.asarray(executor.step([(ids[40:44], state)])[0])]
        state.keep(2)
        if executor.drafts:
            rows.append(np.array(executor.draft([DraftWish(ids[44], state, 3)]), np.float32))
        rows += [executor.forward([id], state, last_only=True) for id in ids[44:]]
        outputs.append(rows)
    for rows in outputs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(outputs[0], rows, strict=True))
    asked, missed, _, _ = few.store.native.counts
    assert 0 < missed <= asked


class Guesses:
    """A store that misses, and writes down what it is told to expect."""

    whole, counts = False, (10, 5, 0, 0)

    def __init__(self, native: _cpu.ExpertStore) -> None:
        self.native = native
        self.addresses = np.zeros_like(native.addresses)
        self.expected: dict[int, list[int]] = {}

    def expect(self, layer: int, ids: np.ndarray, sure: bool) -> None:
        self.expected[layer] = ids.tolist()

    def experts(self, layer: int, *arguments: Any) -> np.ndarray:
        *rest, guess = arguments
        guess()
        result: np.ndarray = self.native.experts(layer, *rest)
        return result


def test_experts_are_guessed_one_layer_ahead(tiny: Path, few_frames: None) -> None:
    """The guess is what the next layer's router says of the streams as they are."""
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    executor = StoredExecutor(network, 2, 16, small_budget(network, 7))
    ops: Any = executor.ops
    layer, store = ops.weights.layers[2], Guesses(ops.store)
    ops.store = store
    streams = np.random.default_rng(2).standard_normal((1, ops.config.streams, ops.config.hidden)).astype(np.float32)
    mixed, _ = ops.hyper_mix(streams, layer.hc_ffn)
    ids, weights = ops.route(ops.linear(layer.experts.router, mixed), ops.config.experts_used)
    ops.foresee(layer, streams)
    ops.experts(ops.weights.layers[1].experts, mixed, ids, weights)
    assert store.expected == {2: sorted(ids[0].tolist())}


def test_guessing_stops_when_it_does_not_pay(tiny: Path, few_frames: None) -> None:
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    ops: Any = StoredExecutor(network, 2, 16, small_budget(network, 7)).ops
    ops.store = Guesses(ops.store)
    ops.store.counts = (10_000, 5000, 1000, 900)
    ops.foresee(ops.weights.layers[1], np.zeros((1, 4, 64), np.float32))
    assert ops._guess is None


def test_load_keeps_to_the_files_of_a_model(tiny: Path) -> None:
    """A budget that nothing needs: the text is the mapped file's, and progress ends with all that was to be read."""
    told: list[tuple[int, int]] = []
    ram = psutil.Process().memory_info().rss + (1 << 30)  # tests before this one count, too
    here = load(tiny / "tiny-mixed.gguf", "cpu", ram=ram, context=256, progress=lambda *n: told.append(n))
    assert isinstance(here.executor, StoredExecutor)
    assert told[-1][0] == told[-1][1] > 0
    prompt = list(range(5, 40))
    mapped = load(tiny / "tiny-mixed.gguf", "cpu", context=256)
    assert list(here.generate(prompt, max_tokens=20)) == list(mapped.generate(prompt, max_tokens=20))


def test_too_little_memory_is_said_before_anything_is_read(tiny: Path) -> None:
    with pytest.raises(MachineError, match=r"ram is 0\.00 GB; the process takes .* allow more"):
        load(tiny / "tiny-mixed.gguf", "cpu", ram=1000)


def test_a_file_cut_while_in_use_is_an_error_not_a_signal(tiny: Path, tmp_path: Path, few_frames: None) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(tiny / "tiny-mixed.gguf", path)
    network = load_network(open_model(path))
    executor = StoredExecutor(network, 2, 16, small_budget(network, 7))
    state = executor.new_state(256)
    executor.forward(list(range(20)), state, last_only=True)
    os.truncate(path, 4096)
    with pytest.raises(MachineError, match=r"model\.gguf: reading .* the file ends after 4,096 bytes; it was cut"):
        executor.forward(list(range(20, 80)), executor.new_state(256), last_only=True)


def test_peak_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """A model larger than its budget answers, and the process never takes more than that."""
    path, ram = tmp_path / "large.gguf", 250_000_000
    config = network_config(
        layers=4, experts=384, vocab=4096, context=4096, ngram_rows=20_000,
        hidden=512, heads=4, expert_size=256, shared_expert_size=256, gdn_value_heads=8, gdn_key_heads=4,
    )  # fmt: skip
    synth(path, config)
    assert path.stat().st_size > 1.2 * ram
    script = (
        "import sys, numpy as np; from jubako.engine.model import load; "
        f"m = load({str(path)!r}, 'cpu', ram={ram}, context=1024, threads=2); "
        "assert not m.executor.store.whole; "
        "ids = np.random.default_rng(0).integers(0, 4096, 200).tolist(); "
        "print(len(list(m.generate(ids, max_tokens=8, stop_ids=())))); "
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    tokens, peak = answer.stdout.split()
    assert int(tokens) == 8
    assert int(peak) * 1024 <= ram
