"""A model laid out by a plan: the bits of one in video memory, with experts in main memory and on the disk."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from jubako.arch.network import Network
from jubako.arch.weights import load_network
from jubako.engine.gpu import boxed, warm
from jubako.engine.gpu.executor import GpuExecutor
from jubako.errors import MachineError
from jubako.files import open_model
from jubako.ops.gpu.boxes import Boxes
from jubako.ops.gpu.slots import filled
from jubako.place import store as stores
from jubako.place.heat import Heat
from jubako.place.plan import Card, Plan
from jubako.place.resident import expert_layers, routed, tensors_of
from jubako.place.where import Files

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CONTEXT = 128
IDS = [5, 17] if not CUDA else [5, 17, 3, 9, 22, 41, 7, 8]


def plan_of(network: Network, expert_ram: int, near: int = 2 * CONTEXT) -> Plan:
    """A quarter of the experts in slots; near: tokens whose keys and values lie in video memory."""
    layers = len(expert_layers(network))
    each = (network.config.experts // 4,) * layers
    return Plan(
        device="cuda", cards=(Card(0, 0, layers, 1 << 33),), context=CONTEXT, sequences=2, kv_bits=8,
        kv_tokens=2 * CONTEXT, kv_tokens_vram=near, slots=each, ram_experts=each, ram=1 << 33,
        expert_ram=expert_ram, ring=4, chunk=64, work=0, link_share=0.0, threads=2, prefix_bytes=0,
    )  # fmt: skip


def read(executor: GpuExecutor) -> list[np.ndarray]:
    """Logits of steps, of a prompt in two chunks that no box reads as steps, and of a step after it."""
    state = executor.new_state(CONTEXT)
    try:
        logits = [np.array(executor.step([([id], state)])[0]) for id in IDS]
        if CUDA:
            executor.chunk = executor.piece = 64
            prompt = np.random.default_rng(4).integers(0, executor.config.vocabulary, 116).tolist()
            state.keep(1)
            logits += [executor.forward(prompt, state, last_only=False), np.array(executor.step([([9], state)])[0])]
        return logits
    finally:
        state.close()


def differing(got: list[np.ndarray], wanted: list[np.ndarray]) -> list[tuple[int, float]]:
    """Which logits have other bits, and by how much."""
    pairs = enumerate(zip(got, wanted, strict=True))
    return [(place, float(np.abs(a - b).max())) for place, (a, b) in pairs if not np.array_equal(a, b)]


@pytest.fixture
def network(tiny: Path, tmp_path: Path) -> Network:
    """On a file of its own, so that it can be cut."""
    shutil.copy(tiny / "tiny-mixed.gguf", tmp_path / "model.gguf")
    return load_network(open_model(tmp_path / "model.gguf"))


@pytest.mark.parametrize("expert_ram", [1 << 30, 1 << 20])
def test_slots_hold_what_the_file_holds(network: Network, monkeypatch: pytest.MonkeyPatch, expert_ram: int) -> None:
    """Slots and a turn of the ring, filled from memory that holds all experts, and from frames that hold a few."""
    monkeypatch.setattr(stores, "LEAST_FRAMES", 6)
    layers = expert_layers(network)
    store = stores.ExpertStore(network, Files(tensors_of(network)), expert_ram)
    boxes = Boxes(layers, boxed.pinned_experts(store), 2 * len(layers), network.config.experts_used, DEVICE)
    assert store.whole == boxes.host.fixed == (expert_ram == 1 << 30)
    wanted = [filled(experts.gate, experts.up, experts.down, DEVICE) for experts in layers]
    held = [(index, boxes.residents.slots(index)) for index in range(len(layers))]
    held += [(1, turn) for turn in boxes.stream.turns(1)][1:2]
    assert sum(int((slots.table >= 0).sum()) for _, slots in held) > 2 * len(layers)
    for index, slots in held:
        for expert, slot in enumerate(slots.table.tolist()):
            for one, other in zip(slots.matrices(max(slot, 0)), wanted[index].matrices(expert), strict=True):
                assert slot < 0 or torch.equal(one.data[: one.nbytes], other.data[: other.nbytes])
    boxes.close()


@pytest.mark.skipif(not CUDA, reason="takes minutes in the interpreter")
def test_bits_do_not_depend_on_the_boxes(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """All experts in main memory; then a few frames there, and the file, with most keys and values in main memory."""
    monkeypatch.setattr(stores, "LEAST_FRAMES", 6)
    monkeypatch.setattr(boxed, "SMALL", 0)
    resident = read(GpuExecutor(network, DEVICE, kv_bits=8, context=CONTEXT, sequences=2))
    told: list[tuple[int, int]] = []
    for expert_ram in (1 << 30, 1 << 20):
        plan = plan_of(network, expert_ram, 2 * CONTEXT if expert_ram == 1 << 30 else 64)
        executor = boxed.boxed_executor(network, DEVICE, plan, progress=lambda *n: told.append(n))
        boxes = executor.ops.boxes
        assert boxes is not None and boxes.host.fixed == (expert_ram == 1 << 30)
        assert differing(read(executor), resident) == [], f"with {expert_ram} bytes of main memory"
        assert (executor.pool.homes is not None) == (expert_ram == 1 << 20)
        assert boxes.threads.requests > 0
        boxes.close()
    assert told[-1][0] == told[-1][1] == sum(t.nbytes for e in expert_layers(network) for t in routed(e))


def on_two_cards(network: Network) -> Plan:
    """The first layer on one, all others on the other, which has the same number if there is but one."""
    plan = plan_of(network, 1 << 30)
    return replace(plan, cards=(Card(0, 0, 1, 1 << 33), Card(1, 1, len(plan.slots), 1 << 33)))


def test_each_card_has_its_layers_and_slots(network: Network) -> None:
    """As the order says: the second card's last expert first. What it lacks comes from the whole's main memory."""
    plan, layers = on_two_cards(network), expert_layers(network)
    store = stores.ExpertStore(network, Files(tensors_of(network)), plan.expert_ram)
    host, last = boxed.pinned_experts(store), network.config.experts - 1
    order = np.array([[layer, last - expert] for expert in range(last + 1) for layer in range(len(layers))], np.int32)
    runs = [range(card.first, card.last) for card in plan.cards]
    made = boxed.boxes_of(network, [DEVICE, DEVICE], runs, plan, host, order)
    assert [own.residents.where.shape[0] for own in made] == [1, len(layers) - 1]
    for own, run in zip(made, runs, strict=True):
        assert ((own.residents.where >= 0).sum(1) == plan.slots[0]).all() and (own.residents.where[:, last] >= 0).all()
        assert np.array_equal(own.host.addresses, host.addresses[run.start : run.stop])
        wanted = layers[run.start]
        mine, _ = own.of(wanted)
        whole = filled(wanted.gate, wanted.up, wanted.down, DEVICE)
        slot = int(own.residents.where[0, last])
        for one, other in zip(mine.matrices(slot), whole.matrices(last), strict=True):
            assert torch.equal(one.data[: one.nbytes], other.data[: other.nbytes])
        own.close()


def test_what_was_used_on_each_card_is_remembered(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "use_file", lambda network: tmp_path / "use.npy")
    monkeypatch.setattr(warm, "atexit", SimpleNamespace(register=lambda work: None))
    rows = len(expert_layers(network))
    swaps: list[Any] = [SimpleNamespace(heat=Heat(count, network.config.experts, 2)) for count in (1, rows - 1)]
    for own, value in zip(swaps, (1.0, 2.0), strict=True):
        own.heat.values[:] = value
    warm.remember(swaps, network)
    swaps[1].keep()
    again: list[Any] = [SimpleNamespace(heat=Heat(count, network.config.experts, 2)) for count in (rows - 1, 1)]
    warm.remember(again, network)
    assert again[0].heat.values[0, 0] == 1.0 and (again[0].heat.values[1:] == 2.0).all()
    assert (again[1].heat.values == 2.0).all()


@pytest.mark.skipif(not CUDA, reason="takes minutes in the interpreter")
def test_bits_do_not_depend_on_the_cards(network: Network) -> None:
    """Two cards with slots of their own; one GPU plays both where there is one."""
    resident = read(GpuExecutor(network, DEVICE, kv_bits=8, context=CONTEXT, sequences=2))
    cards = [torch.device("cuda", card % torch.cuda.device_count()) for card in range(2)]
    executor = boxed.boxed_executor(network, cards, on_two_cards(network))
    assert differing(read(executor), resident) == []
    prompts = []
    for made in (executor, GpuExecutor(network, DEVICE, kv_bits=16, context=CONTEXT)):
        prompts.append(made.forward(list(range(1, 60)), made.new_state(CONTEXT), last_only=True))
    assert np.abs(prompts[0] - prompts[1]).max() <= 2e-2 * np.abs(prompts[1]).max()
    for own in executor.boxes:
        assert own.threads.requests > 0
        own.close()


def test_a_card_that_others_filled_meanwhile(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the plan and the slots: the error says what is free and what to do, and no thread is left."""

    def taken(*arguments: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(boxed, "Boxes", taken)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 24 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card")
    with pytest.raises(
        MachineError, match=r"\d+ slots for experts, does not fit: 1\.0 of Card's 24\.0 GB are free; others"
    ):
        boxed.boxed_executor(network, torch.device("cpu"), plan_of(network, 1 << 30))


def test_memory_that_is_gone_meanwhile(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxed, "usable_memory", lambda: 1000)
    with pytest.raises(MachineError, match=r"still needed for experts and 0\.0 GB are free.*allow less with --ram"):
        boxed.boxed_executor(network, DEVICE, plan_of(network, 1 << 30))


def test_a_file_that_is_cut_while_loading(network: Network) -> None:
    os.truncate(network.embed.file, 4096)
    with pytest.raises(MachineError, match=r"model\.gguf: reading .* the file ends after 4,096 bytes"):
        boxed.boxed_executor(network, DEVICE, replace(plan_of(network, 1 << 30)))
