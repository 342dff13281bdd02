"""Memory, halves and exchanges of several cards. On a machine without GPUs both cards are the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from block_rows import rows_of
from gpu_weights import activations, both, slots
from measure.networks import narrow
from sizes import config

from jubako.arch.weights import load_network
from jubako.errors import MachineError
from jubako.files import open_model
from jubako.measure.synth import synth
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.experts import Experts, Routed
from jubako.ops.gpu.launch import COLUMNS
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.peer import Passage, copy_kernel
from jubako.ops.gpu.peer_exchange import Block, Boxes, Exchange, Mixture, Product, added, exchange, made
from jubako.ops.gpu.peer_pool import CardsPool
from jubako.ops.gpu.peer_shard import shard
from jubako.ops.gpu.peer_word import SITES
from jubako.ops.gpu.saved import resume, save
from jubako.ops.gpu.sequence import GpuState
from jubako.ops.gpu.state import StatePool
from jubako.ops.gpu.tiles import TILES, fits, to_tiles
from jubako.quant import BY_NAME

CPU = torch.device("cpu")
RATIOS: list[int | None] = [None, None, 4, None, 4, 4]  # five layers and the draft layer


def one_card() -> StatePool:
    return filled(StatePool(config(layers=5), RATIOS, 3, 1024, 512, 8, CPU, True, 1))


def cards(cut: int) -> CardsPool:
    sizes = (config(layers=5), 3, 1024, 512, 8, CPU)
    first = StatePool(sizes[0], RATIOS[:cut], *sizes[1:], False, 1 if cut > 1 else None)
    return CardsPool([first, StatePool(sizes[0], RATIOS[cut:], *sizes[1:], True, 0 if cut == 1 else None)])


def filled(pool: StatePool) -> StatePool:
    generator = torch.Generator().manual_seed(1)
    for part in (paged.near for paged in pool._paged):
        part.copy_(torch.randint(-100, 100, part.shape, generator=generator).to(part.dtype))
    for slot in range(3):
        for part in pool.fixed_parts(slot):
            part.copy_(torch.randn(part.shape, generator=generator))
    return pool


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_what_one_card_saved_several_resume_and_back(cut: int) -> None:
    """Wherever the layers are cut: the same bytes in the same order."""
    one, several = one_card(), cards(cut)
    state = GpuState(one, 512)
    filled(one)
    state.reserve(150)
    state.read(150)
    state.draft_position, state.carried = 149, [7]
    saved = save(state)
    pages = one.read(saved.pages)

    there = GpuState(several, 512)
    there.reserve(150)
    several.write(there.pages.ids, pages)
    for pool, table in zip(several.pools, several.tables, strict=True):
        assert table is pool.table and table[there.slot, :3].tolist() == there.pages.ids
    kept = several.pages
    moved = type(saved)(saved.position, saved.draft_position, saved.content(), tuple(there.pages.ids))
    kept.hold(moved.pages)
    resume(there, moved, list(range(150)))
    assert several.page_bytes == one.page_bytes
    assert there.fixed_bytes == state.fixed_bytes
    again = save(there)
    assert np.array_equal(again.content(), saved.content())
    assert np.array_equal(several.read(again.pages), pages)
    assert all(pool.tokens[there.slot, :150].tolist() == list(range(150)) for pool in several.pools)


def test_a_slot_and_a_page_are_taken_on_every_card() -> None:
    pool = cards(2)
    slot = pool.take_slot()
    for part in pool.pools:
        for layer in part.layers:
            if hasattr(layer, "memory"):
                layer.memory[slot] = 1
    pool.give_slot(slot)
    assert pool.take_slot() == slot
    assert all(not layer.memory[slot].any() for layer in pool.layers if hasattr(layer, "memory"))
    filled(pool.pools[0])
    filled(pool.pools[1])
    data = pool.read([3, 5])
    pool.write([7, 8], data[::-1].copy())
    pool.copy(3, 9)
    assert np.array_equal(pool.read([8, 7, 9]), data[[0, 1, 0]])
    assert pool.nbytes() == sum(part.nbytes() for part in pool.pools)


def test_what_is_sent_is_a_copy(device: torch.device) -> None:
    for way in ("send", "fetch"):
        x = torch.arange(1200.0, device=device).view(3, 400)
        sent = getattr(Passage(device, device), way)(x)
        want = x.clone()
        x.zero_()
        assert torch.equal(sent, want)


def test_a_launch_copies_all_and_no_more(device: torch.device) -> None:
    x, out = torch.arange(3000, dtype=torch.int32, device=device), torch.zeros(3072, dtype=torch.int32, device=device)
    copy_kernel[(3,)](x, out, 2900, PIECE=1024)
    assert torch.equal(out[:2900], x[:2900]) and not out[2900:].any()


# Exchanges


def mixture(device: torch.device, tokens: int, hidden: int, kind: str, seed: int) -> Mixture:
    """Two of three experts, and the shared one."""
    routed, shared = (slots("Q4_0", kind, count, 64, hidden, device, seed=seed)[0] for count in (3, 1))
    generator = torch.Generator().manual_seed(seed)
    weights, share = torch.rand(tokens, 2, generator=generator).to(device), torch.randn(tokens, generator=generator)
    ids = torch.tensor([[2, 0], [0, 1]], dtype=torch.int32, device=device)
    x = torch.from_numpy(activations(tokens, hidden, seed)).to(device)
    layer = Experts((both("F32", 4, hidden, device)[0],), routed, shared)
    return Mixture(layer, x, Routed(ids, weights, share.to(device)))


def product(device: torch.device, tokens: int, rows: int, name: str, seed: int) -> Product:
    """Of a matrix in tiles, which goes straight to the other card, or in planes."""
    raw = torch.from_numpy(rows_of(name, (rows,), 256, seed)).to(device)
    kind, tiled = BY_NAME[name], both(name, rows, 256, device, seed)[0]
    if fits(kind, 256):
        tiled = Matrix(to_tiles(raw, kind), TILES[name], rows, 256)
    return Product(tiled, torch.from_numpy(activations(tokens, 256, seed)).to(device))


@pytest.mark.parametrize("kind", ["experts of Q4_0", "experts of F16", "Q8_0", "Q6_K", "Q4_0"])
def test_each_card_gets_the_sum_of_both(device: torch.device, kind: str) -> None:
    """By words: one card's go into the other's inbox first, as nobody runs beside the interpreter."""
    tokens, hidden = 2, 256
    parts: list[Any]
    if kind.startswith("experts of "):
        parts = [mixture(device, tokens, hidden, kind.split()[-1], seed) for seed in range(2)]
    else:
        parts = [product(device, tokens, hidden, kind, seed) for seed in range(2)]
    total = added(parts[0]) + added(parts[1])
    inboxes = [torch.zeros(2, COLUMNS, hidden, dtype=torch.int64, device=device) for _ in range(2)]
    passes = torch.full((1,), 5, dtype=torch.int32, device=device)
    sides = [Boxes(inboxes[card], inboxes[1 - card], passes) for card in range(2)]

    def side_of(card: int, site: int) -> torch.Tensor:
        part, sent = made(parts[card], sides[card].outbox_of(site))
        assert sent == (kind in ("experts of Q4_0", "Q8_0", "Q6_K"))
        exchange(part, sent, sides[card], site, patience=2)
        return part

    for site in (6, 7):
        assert torch.isnan(side_of(0, site)).all(), "nothing had come yet"
        assert torch.equal(side_of(1, site), total) and torch.equal(side_of(0, site), total)
    assert set((inboxes[0][:, :tokens] & 0xFFFFFFFF).view(-1).tolist()) == {5 * SITES + 6, 5 * SITES + 7}


def test_without_peer_access_parts_are_copied_and_added(device: torch.device) -> None:
    """Through main memory, both cards the same."""
    between = Exchange([Passage(device, device, direct=device.type == "cpu") for _ in range(2)], 256)
    assert not between.words
    on = (nullcontext, nullcontext)
    between.begin(on)
    parts = [product(device, 3, 256, "Q4_K", seed) for seed in range(2)]
    streams = [torch.zeros(3, 4, 256, device=device) for _ in parts]
    inject = torch.full((3, 4), 0.5, device=device)
    blocks = [Block(part, sums, inject, None, True) for part, sums in zip(parts, streams, strict=True)]
    assert between.mixed(blocks, on) == [None, None]
    want = 0.5 * (added(parts[0]) + added(parts[1]))
    assert all(torch.equal(sums, want[:, None].expand(3, 4, 256)) for sums in streams)


# Halves


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("halves") / "net.gguf"
    synth(path, narrow(layers=4, experts=4, vocab=320, ngram_rows=200), BlockTypes())
    return load_network(open_model([path]))


def test_halves_add_up_to_the_whole(network: Any) -> None:
    """Products of halves of the rows with halves of the columns, head by head and expert by expert."""
    halves: list[Any] = [shard(network, card)[0] for card in range(2)]
    c = network.config
    rng = np.random.default_rng(0)
    assert all(half.config.heads * 2 == c.heads and half.draft is None for half in halves)

    gdn = network.layers[0].mixer
    dim, keys = c.gdn_dim, c.gdn_key_heads
    x = rng.standard_normal(c.hidden)
    qkv = gdn.qkv.decoded() @ x
    for card, half in enumerate(halves):
        mine = half.layers[0].mixer
        own = mine.qkv.decoded() @ x
        heads = half.config.gdn_value_heads
        for head in range(heads):  # value head j reads key head j mod the key heads, here as there
            of_all = head // (keys // 2) * keys + card * (keys // 2) + head % (keys // 2)
            key, value = keys // 2 + head % (keys // 2), keys + head
            whole_key, whole_value = keys + of_all % keys, 2 * keys + of_all
            assert np.array_equal(own.reshape(-1, dim)[key], qkv.reshape(-1, dim)[whole_key])
            assert np.array_equal(own.reshape(-1, dim)[value], qkv.reshape(-1, dim)[whole_value])
            assert mine.a.decoded()[head] == gdn.a.decoded()[of_all]
    gates = gdn.gate.decoded() @ x
    parts = sum(h.layers[0].mixer.out.decoded() @ (h.layers[0].mixer.gate.decoded() @ x) for h in halves)
    assert np.allclose(parts, gdn.out.decoded() @ gates, rtol=1e-4, atol=1e-4)

    attention = network.layers[3].mixer
    wanted = attention.output.decoded() @ (attention.q.decoded() @ x).reshape(c.heads, 2, c.head_dim)[:, 0].reshape(-1)
    parts = 0
    for half in halves:
        mine = half.layers[3].mixer
        q = (mine.q.decoded() @ x).reshape(c.heads // 2, 2, c.head_dim)[:, 0].reshape(-1)
        parts += mine.output.decoded() @ q
        assert len(mine.k.decoded()) * 2 == len(attention.k.decoded()) and mine.indexer is attention.indexer
    assert np.allclose(parts, wanted, rtol=1e-4, atol=1e-4)

    for gate, up, down in (("gate", "up", "down"), ("shared_gate", "shared_up", "shared_down")):

        def output(experts: Any, gate: str = gate, up: str = up, down: str = down) -> Any:
            hidden = (getattr(experts, gate).decoded() @ x) * (getattr(experts, up).decoded() @ x)
            return (getattr(experts, down).decoded() @ hidden[..., None])[..., 0]

        parts = sum(output(half.layers[1].experts) for half in halves)
        assert np.allclose(parts, output(network.layers[1].experts), rtol=1e-4, atol=1e-4)


def test_halves_of_the_vocabulary_are_the_head(network: Any) -> None:
    rows = [shard(network, card)[0].output.decoded() for card in range(2)]
    assert np.array_equal(np.concatenate(rows), network.output.decoded()) and len(rows[0]) == 160


def test_a_source_of_whole_tensors_gives_halves(network: Any) -> None:
    half, give = shard(network, 1, lambda tensor: torch.from_numpy(tensor.data.copy()))
    plain, _ = shard(network, 1)
    assert give is not None
    for path in ("mixer.qkv", "mixer.out", "mixer.a", "experts.gate", "experts.down", "hc_attn.down"):
        cut: Any = half.layers[0]
        wanted: Any = plain.layers[0]
        for name in path.split("."):
            cut, wanted = getattr(cut, name), getattr(wanted, name)
        assert cut.shape == wanted.shape
        assert np.array_equal(give(cut).numpy(), wanted.data)


def test_what_can_not_be_halved_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("halves") / "odd.gguf"
    synth(path, narrow(layers=4, experts=4, vocab=320, ngram_rows=200, kv_heads=1), BlockTypes())
    with pytest.raises(MachineError, match="1 key/value heads can't be shared by two cards; split the layers"):
        shard(load_network(open_model([path])), 0)
