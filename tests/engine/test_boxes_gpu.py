"""Logits are the same to the bit wherever experts lie, and while they change places."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from jubako import _cpu
from jubako.arch.network import Experts as ArchExperts
from jubako.arch.tensor import Tensor
from jubako.engine.gpu import swaps
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.gpu.swaps import Swaps
from jubako.errors import MachineError
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.away import NAMED, NAMES
from jubako.ops.gpu.boxes import Boxes
from jubako.ops.gpu.experts import Experts, Routed, experts, parts_of
from jubako.ops.gpu.host import HostExperts, addresses_of
from jubako.ops.gpu.hyper import hyper_mix
from jubako.ops.gpu.pinned import copy_of
from jubako.ops.gpu.route import route_experts
from jubako.ops.gpu.slots import filled
from jubako.place.heat import Heat

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
SIZES = {
    "hidden": 256, "heads": 2, "kv_heads": 1, "head_dim": 64, "rope_dims": 32, "index_heads": 2, "index_dim": 32,
    "gdn_key_heads": 1, "gdn_value_heads": 2, "gdn_dim": 32, "experts_used": 3, "expert_size": 64,
    "shared_expert_size": 64, "hyper_rank": 32,
}  # fmt: skip
IDS = [5, 17, 3, 9, 22, 41]


class Small:
    """Two layers of twelve experts each; a tensor's blocks are made once."""

    def __init__(self) -> None:
        config = network_config(layers=2, experts=12, vocab=512, context=64, ngram_rows=2048, **SIZES)
        self.network, self._make = synthetic_network(config, DEVICE, BlockTypes.parse("ngram=BF16"))
        self._made: dict[str, torch.Tensor] = {}

    def source(self, tensor: Tensor) -> torch.Tensor:
        if tensor.name not in self._made:
            self._made[tensor.name] = self._make(tensor)
        return self._made[tensor.name]

    def executor(self, boxes: Boxes | None = None) -> GpuExecutor:
        return GpuExecutor(self.network, DEVICE, context=64, sequences=2, source=self.source, boxes=boxes)

    def boxes(self, slots: int) -> Boxes:
        layers = [layer.experts for layer in self.network.layers]
        stacks = [[copy_of(self.source(t).cpu().numpy(), DEVICE) for t in tensors_of(e)] for e in layers]
        host = HostExperts(np.stack([addresses_of(own) for own in stacks]), stacks, fixed=True)
        return Boxes(layers, host, slots, self.network.config.experts_used, DEVICE)


@pytest.fixture(scope="module")
def small() -> Iterator[Small]:
    """Its threads wait busily while the interpreter steps: on a machine of two cores the pool must be small."""
    threads = _cpu.threads()
    _cpu.set_threads(1)
    yield Small()
    _cpu.set_threads(threads)


def read(executor: GpuExecutor) -> np.ndarray:
    """Logits of IDS read one by one."""
    state = executor.new_state(64)
    try:
        return np.concatenate([np.array(executor.step([([id], state)])[0]) for id in IDS])
    finally:
        state.close()


def tensors_of(experts: ArchExperts) -> tuple[Tensor, Tensor, Tensor]:
    return experts.gate, experts.up, experts.down


def check_tables(boxes: Boxes) -> None:
    """Host and device agree, and no slot has two experts. While experts are on their way their slots are nobody's."""
    where = boxes.residents.where
    assert np.array_equal(boxes.residents.table.cpu().numpy(), where)
    for pool in boxes.residents.pools.values():
        slots = where[tuple(pool.holders.T)]
        assert np.array_equal(np.where(slots < 0, np.arange(pool.slots), slots), np.arange(pool.slots))
    assert len(np.unique(where[where >= 0])) == (where >= 0).sum()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts change places at every occasion."""
    monkeypatch.setattr(swaps, "EVERY", 1)
    monkeypatch.setattr(swaps, "TOGETHER", 2)
    monkeypatch.setattr("jubako.place.heat.BEYOND_CHANCE", 0.0)


@pytest.mark.skipif(not CUDA, reason="a dozen steps take the interpreter minutes; the next test does a layer's half")
def test_logits_do_not_depend_on_where_experts_lie(small: Small, eager: None) -> None:
    """A few of the experts in slots, others taking their places between steps, some fetched for a moment."""
    want = read(small.executor())
    boxes = small.boxes(4)
    executor = small.executor(boxes)
    for share in (0.0, 0.5, 1.0):
        boxes.share(share)
        assert np.array_equal(read(executor), want)
    assert executor.swaps[0].swapped > 0 and boxes.threads.requests > 0
    boxes.close()


def test_bits_do_not_depend_on_where_experts_lie(small: Small, eager: None) -> None:
    """The experts of both layers for one token after the other, while they change places; half of the absent ones are
    fetched."""
    network, rng = small.network, np.random.default_rng(4)
    chosen, hidden = network.config.experts_used, network.config.hidden
    layers = [layer.experts for layer in network.layers]
    boxes = small.boxes(4)
    moving = Swaps(boxes, Heat(2, 12, chosen))
    boxes.share(0.5)
    own = layers[0]
    shared = filled(own.shared_gate, own.shared_up, own.shared_down, DEVICE, small.source)
    shared_cpu = [
        _cpu.Weight(small.source(t).cpu().numpy(), t.type.id) for t in (own.shared_gate, own.shared_up, own.shared_down)
    ]
    no_share = _cpu.Weight(np.zeros((1, 4 * hidden), np.uint8), 0)
    raw = [[small.source(t).cpu().numpy() for t in tensors_of(own)] for own in layers]
    cpu = [
        [_cpu.Weight(a, t.type.id) for a, t in zip(r, tensors_of(own), strict=True)]
        for r, own in zip(raw, layers, strict=True)
    ]
    before = boxes.residents.where.copy()
    for _ in range(3):
        for index, own in enumerate(layers):
            x = torch.from_numpy(rng.standard_normal((1, hidden)).astype(np.float32)).to(DEVICE)
            ids = torch.from_numpy(rng.permutation(6)[None, :chosen].astype(np.int32)).to(DEVICE)
            routed = Routed(ids, torch.full((1, chosen), 0.3, device=DEVICE), torch.zeros(1, device=DEVICE))
            mine, away = boxes.of(own)
            with boxes.awake():
                got = experts(Experts((), mine, shared, away), x, routed)
                moving.between()
                check_tables(boxes)
            arrays = (x, ids, routed.weights)
            want = _cpu.experts(*cpu[index], *(a.cpu().numpy() for a in arrays), no_share, *shared_cpu)
            assert got.cpu().numpy().tobytes() == want.tobytes()
    assert int(boxes.counts.sum()) == 3 * 2 * chosen
    assert boxes.threads.experts > 0
    assert moving.swapped > 0 and not np.array_equal(boxes.residents.where, before)
    boxes.close()


@pytest.mark.parametrize("part", [1, 3])
def test_experts_of_the_next_layer_come_early(small: Small, part: int) -> None:
    """Those that its router names by the streams as they are lie in slots when it asks, and the threads are told of
    others; nothing else changes."""
    boxes = small.boxes(4)
    boxes.foresee(2, named=1, part=part)
    ops, chosen = small.executor(boxes).ops, small.network.config.experts_used
    first, second = ops.weights.layers
    generator = torch.Generator().manual_seed(6)
    streams = torch.randn(2, small.network.config.streams, small.network.config.hidden, generator=generator).to(DEVICE)
    with boxes.awake():
        beside = ops.foresight.beside(first.experts, streams, chosen)
        assert not beside.came
        beside.fetch()
        beside.finish()
        x, _ = hyper_mix(streams, second.hc_ffn, fine=False)
        routed = route_experts(second.experts, x, chosen)
        plain = parts_of(second.experts, x, routed).clone()
        lacking = [id for id in dict.fromkeys(routed.ids.flatten().tolist()) if boxes.residents.where[1, id] < 0]
        early = min(-(-len(lacking) // part), 2)
        named, words = lacking[:early], boxes.mailbox.words
        assert words[NAMED : NAMES + 1].tolist() == [1, 1, 1, lacking[early]]
        link, there = second.experts.away.link, second.experts.routed
        after = ops.foresight.beside(second.experts, streams, chosen)
        assert after.came
        after.arrive()
        assert link.foreseen[: 1 + early].tolist() == [early, *named]
        own = small.network.layers[1].experts
        wanted = filled(own.gate, own.up, own.down, DEVICE, small.source)
        for place, id in enumerate(named):
            for one, other in zip(there.matrices(link.ahead + place), wanted.matrices(id), strict=True):
                assert torch.equal(one.data[: one.nbytes], other.data[: other.nbytes])
        requests, asked = boxes.threads.requests, boxes.threads.experts
        routed = route_experts(second.experts, x, chosen)
        assert torch.equal(parts_of(second.experts, x, routed, beside=after), plain)
    assert boxes.mailbox.state[4:6].tolist() == [early, early]
    absent = {id for id in routed.ids.flatten().tolist() if boxes.residents.where[1, id] < 0}
    assert boxes.threads.experts - asked == len(absent) - early and boxes.threads.requests - requests <= 1
    boxes.close()


def test_an_expert_that_is_nowhere(small: Small) -> None:
    """The step ends in a clear error, not in a hang."""
    layers = [layer.experts for layer in small.network.layers]
    boxes = small.boxes(0)
    boxes.host.addresses[:] = 0
    mine, away = boxes.of(layers[1])
    routed = Routed(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1), torch.zeros(1))
    routed = Routed(*(t.to(DEVICE) for t in (routed.ids, routed.weights, routed.share)))
    with pytest.raises(MachineError, match="memory"), boxes.awake():
        experts(Experts((), mine, mine, away), torch.ones(1, small.network.config.hidden, device=DEVICE), routed).cpu()
    boxes.close()
