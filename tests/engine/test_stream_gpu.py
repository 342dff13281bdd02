"""Prompts whose experts pass through video memory: the bits of a network that lies there, chunk after chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from jubako.arch.tensor import Tensor
from jubako.arch.weights import load_network
from jubako.engine.gpu.executor import GpuExecutor
from jubako.files import open_model
from jubako.ops.gpu import stream
from jubako.ops.gpu.boxes import Boxes
from jubako.ops.gpu.experts import add_up, parts_of
from jubako.ops.gpu.far_table import FarTable
from jubako.ops.gpu.host import HostExperts
from jubako.ops.gpu.launch import COLUMNS
from jubako.ops.gpu.route import route_experts
from jubako.ops.gpu.slots import filled
from jubako.place.resident import tensors_of
from jubako.place.where import Files

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CONTEXT = 128


@pytest.fixture
def boxed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuExecutor]:
    """The tiny network with slots for a quarter of its experts, and raw buffers for few at a time."""
    monkeypatch.setattr(stream, "TOGETHER", 3)
    monkeypatch.setattr(stream, "TURNS", 2)
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    layers = [layer.experts for layer in network.layers]
    slots = len(layers) * network.config.experts // 4
    boxes = Boxes(layers, HostExperts.of(layers, DEVICE), slots, network.config.experts_used, DEVICE)
    yield GpuExecutor(network, DEVICE, kv_bits=16, context=CONTEXT, sequences=2, boxes=boxes)
    boxes.close()


def test_every_expert_has_one_turn(boxed: GpuExecutor, tiny: Path) -> None:
    """It lies where that turn's table says, whichever order layers are asked in."""
    boxes = boxed.ops.boxes
    assert boxes is not None
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    for index in (0, 1, 3, 1) if not CUDA else (0, 1, 2, 3, 1, 0):
        experts = network.layers[index].experts
        wanted = filled(experts.gate, experts.up, experts.down, DEVICE)
        seen: list[int] = []
        for slots in boxes.stream.turns(index):
            for expert, slot in enumerate(slots.table.tolist()):
                if slot >= 0:
                    seen.append(expert)
                    for one, other in zip(slots.matrices(slot), wanted.matrices(expert), strict=True):
                        assert torch.equal(one.data[: one.nbytes], other.data[: other.nbytes])
        assert sorted(seen) == list(range(network.config.experts))


@pytest.mark.skipif(not CUDA, reason="takes half a minute in the interpreter")
def test_a_layer_gives_the_same(boxed: GpuExecutor, tiny: Path) -> None:
    """More tokens than a step has, through the layer's slots while they pass and through slots that stay."""
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    theirs, mine = network.layers[2].experts, boxed.ops.weights.layers[2].experts
    resident = replace(mine, routed=filled(theirs.gate, theirs.up, theirs.down, DEVICE), away=None)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(COLUMNS + 1, network.config.hidden, generator=generator).to(DEVICE)
    got, wanted = (
        add_up(parts_of(layer, x, route_experts(layer, x, network.config.experts_used)), torch.empty_like(x))
        for layer in (mine, resident)
    )
    assert torch.equal(got, wanted)


@pytest.mark.skipif(not CUDA, reason="takes minutes in the interpreter")
def test_logits_of_prompts(boxed: GpuExecutor, tiny: Path) -> None:
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    resident = GpuExecutor(network, DEVICE, kv_bits=16, context=CONTEXT, sequences=2)
    ids = np.random.default_rng(4).integers(0, network.config.vocabulary, 120).tolist()
    read = []
    for executor in (boxed, resident):
        state = executor.new_state(CONTEXT)
        read.append([executor.forward(part, state, last_only=False) for part in (ids[:50], ids[50:])])
        state.close()
    assert all(np.array_equal(a, b) for a, b in zip(*read, strict=True))


@pytest.mark.skipif(not CUDA, reason="takes minutes in the interpreter")
def test_steps_with_the_table_on_the_disk(tiny: Path) -> None:
    """The n-gram rows of a step come from the file while the first layer is computed."""
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    files = Files(tensors_of(network))
    heads = network.config.ngram.heads if network.config.ngram else 0

    def far(tensor: Tensor, device: torch.device) -> FarTable:
        return FarTable(tensor, files.table(tensor), heads, device)

    read = []
    for place in (far, False):
        executor = GpuExecutor(network, DEVICE, kv_bits=16, context=CONTEXT, sequences=2, host_table=place)
        state = executor.new_state(CONTEXT)
        read.append([np.array(executor.step([([id], state)])[0]) for id in (5, 9)])
        state.close()
    assert all(np.array_equal(a, b) for a, b in zip(*read, strict=True))
