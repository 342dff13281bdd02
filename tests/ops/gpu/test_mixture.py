"""Experts have the CPU's bits wherever they lie; hyper-connections and routes are near or equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from block_rows import rows_of, weight
from gpu_weights import both, same_bits, slots

from jubako import _cpu
from jubako.ops.gpu.activation import quantize
from jubako.ops.gpu.combine import hyper_combine
from jubako.ops.gpu.expert_step import Cut
from jubako.ops.gpu.experts import Experts, Routed, experts, experts_combine
from jubako.ops.gpu.hyper import HyperMix, experts_mix, hyper_mix, linear_mix
from jubako.ops.gpu.kinds import addend_word, has_table, table_word
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.planar import LAYOUTS
from jubako.ops.gpu.route import argmax, route, route_experts
from jubako.ops.gpu.router import router_product
from jubako.ops.gpu.tiles import TILED, to_tiles
from jubako.quant import BY_NAME

HIDDEN, SIZE, COUNT, CHOSEN = 256, 64, 5, 3


@dataclass
class Mixture:
    """A layer's experts on both sides, and what is routed to them."""

    layer: Experts
    cpu: tuple[_cpu.Weight, ...]
    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    device: torch.device

    def wanted(self) -> np.ndarray:
        gate, up, down, router, *shared = self.cpu
        return np.asarray(_cpu.experts(gate, up, down, self.x, self.ids, self.weights, router, *shared))

    def routed(self) -> Routed:
        share = np.ascontiguousarray(_cpu.linear(self.cpu[3], self.x)[:, 0])
        return Routed(*(torch.from_numpy(a).to(self.device) for a in (self.ids, self.weights, share)))

    def input(self) -> torch.Tensor:
        return torch.from_numpy(self.x).to(self.device)


def mixture(
    gate: str, down: str, shared: str, tokens: int, device: torch.device, down_cols: int = 0, hidden: int = HIDDEN,
    up: str = "",
) -> Mixture:  # fmt: skip
    rng = np.random.default_rng(tokens)
    mine, cpu = slots(gate, down, COUNT, SIZE, hidden, device, down_cols, up=up)
    one, cpu_shared = slots(shared, shared, 1, SIZE, hidden, device, seed=7)
    router, cpu_router = both("F32", 1, hidden, device, 4)
    ids = np.stack([rng.permutation(COUNT)[:CHOSEN] for _ in range(tokens)]).astype(np.int32)
    weights = rng.dirichlet(np.ones(CHOSEN), tokens).astype(np.float32)
    x = rng.standard_normal((tokens, hidden)).astype(np.float32)
    return Mixture(Experts((router,), mine, one), (*cpu, cpu_router, *cpu_shared), x, ids, weights, device)


@pytest.mark.parametrize(
    ("gate", "down", "shared", "cols"),
    [("IQ3_XXS", "IQ4_NL", "Q8_0", 0), ("Q4_K", "Q5_1", "Q8_0", 0), ("NVFP4", "Q2_K", "IQ4_NL", 256)],
)
def test_bits_of_the_cpu(gate: str, down: str, shared: str, cols: int, device: torch.device) -> None:
    case = mixture(gate, down, shared, 2, device, cols)
    assert same_bits(experts(case.layer, case.input(), case.routed()), case.wanted())


@pytest.mark.parametrize(("apart", "words", "each"), [(10, 0, 1), (15, 0, 1), (0, 9, 1), (0, 99, 1), (0, 9, 2)])
def test_bits_however_it_is_cut(apart: int, words: int, each: int, device: torch.device) -> None:
    """One or all three units of a row together; gate and up in the same lanes, in several rows each, or apart."""
    case = mixture("IQ3_XXS", "MXFP4", "Q8_0", 1, device, hidden=768)
    cut = Cut(apart=apart, words=words, shared=words, each=each, tile=64, rows=128, groups=2)
    assert same_bits(experts(case.layer, case.input(), case.routed(), cut), case.wanted())


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("hidden", [256, 768, 1024])
def test_bits_of_four_rows_a_lane(hidden: int, tile: int, device: torch.device) -> None:
    """Codes of one bit, rows of one, three and four units; tiles of a warp's lanes and of more."""
    case = mixture("Q1_0", "Q1_0", "Q8_0", 1, device, 128, hidden=hidden)
    cut = Cut(apart=10, tile=tile, rows=128, groups=2)
    assert cut.in_fours(case.layer.routed) and not cut.in_fours(case.layer.shared)
    assert same_bits(experts(case.layer, case.input(), case.routed(), cut), case.wanted())


def test_gate_and_up_of_different_types(device: torch.device) -> None:
    case = mixture("Q5_0", "Q8_0", "Q8_0", 1, device, up="Q4_K")
    assert same_bits(experts(case.layer, case.input(), case.routed()), case.wanted())


@pytest.mark.parametrize("name", [name for name in LAYOUTS if has_table(BY_NAME[name].id)])
def test_words_that_add_up(name: str) -> None:
    """Each code's value is what prmt finds in A, and in B for the code with bit 3 turned, added up."""
    kind = BY_NAME[name].id
    tables = [np.array([addend_word(kind, 2 * k + i) for i in range(2)], np.int32).view(np.int8) for k in range(2)]

    def found(table: np.ndarray, code: int) -> int:
        return int(table[code]) if code < 8 else -int(table[code - 8] < 0)

    values = np.array([table_word(kind, i) for i in range(4)], np.int32).view(np.int8)
    assert [found(tables[0], c) + found(tables[1], c ^ 8) for c in range(16)] == values.tolist()


def test_absent_experts_add_nothing(device: torch.device) -> None:
    case = mixture("Q8_0", "Q8_0", "Q8_0", 2, device)
    case.ids[0, 1] = -1
    assert same_bits(experts(case.layer, case.input(), case.routed()), case.wanted())


def test_plain_numbers(device: torch.device) -> None:
    case = mixture("BF16", "F16", "F32", 1, device)
    want = case.wanted()
    got = experts(case.layer, case.input(), case.routed()).cpu().numpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(("gate", "down"), [("IQ3_XXS", "Q5_1"), ("BF16", "BF16")])
def test_prompt(gate: str, down: str, device: torch.device) -> None:
    """The CPU reads its input in eight bits, the GPU here in as many or more."""
    case = mixture(gate, down, "Q8_0", 17, device)
    want = case.wanted()
    got = experts(case.layer, case.input(), case.routed()).cpu().numpy()
    assert np.linalg.norm(got - want) <= 2e-2 * np.linalg.norm(want)


def tiled(rows: int, cols: int, device: torch.device, seed: int) -> tuple[Matrix, _cpu.Weight]:
    """`both` of Q8_0, in tiles here."""
    raw = rows_of("Q8_0", (rows,), cols, seed)
    return Matrix(to_tiles(torch.from_numpy(raw).to(device)), TILED, rows, cols), weight("Q8_0", raw)


def mix(inject: str | None, down: str, device: torch.device, rank: int = 32) -> tuple[HyperMix, _cpu.HyperMix]:
    """down: a block type, or "tiles" where both matrices lie in them."""
    norm = (1 + 0.1 * np.random.default_rng(5).standard_normal(4 * HIDDEN)).astype(np.float32)
    if down == "tiles":
        (a, b), (c, d) = tiled(rank, 4 * HIDDEN, device, 1), tiled(4 * HIDDEN, rank, device, 2)
    else:
        (a, b), (c, d) = both(down, rank, 4 * HIDDEN, device, 1), both("Q8_0", 4 * HIDDEN, rank, device, 2)
    e, f = both(inject, 4, 4 * HIDDEN, device, 3) if inject else (None, None)
    return HyperMix(torch.from_numpy(norm).to(device), a, c, e, 4, 1e-6), _cpu.HyperMix(norm, b, d, f, 4, 1e-6)


def streams_of(tokens: int) -> np.ndarray:
    rng = np.random.default_rng(6)
    return (rng.standard_normal((tokens, 4, HIDDEN)) * 3).astype(np.float32)


@pytest.mark.parametrize(
    ("inject", "down", "rank", "tokens"),
    [
        ("F32", "Q8_0", 32, 2),
        (None, "BF16", 32, 1),
        ("F32", "Q8_0", 32, 17),
        ("F32", "tiles", 64, 17),
    ],
)
def test_mix(inject: str | None, down: str, rank: int, tokens: int, device: torch.device) -> None:
    gpu, cpu = mix(inject, down, device, rank)
    streams = streams_of(tokens)
    want, want_inject = cpu.mix(streams)
    got, got_inject = hyper_mix(torch.from_numpy(streams).to(device), gpu)
    tolerance = 1e-5 if tokens < 17 else 5e-3
    assert np.abs(got.plain().cpu().numpy() - want).max() <= tolerance * np.abs(want).max()
    assert (got_inject is None) == (want_inject is None)
    if got_inject is not None:
        assert np.abs(got_inject.cpu().numpy() - want_inject).max() <= tolerance


def test_mix_of_columns_is_independent(device: torch.device) -> None:
    tokens = 3
    gpu, _ = mix("F32", "Q8_0", device, 64)
    streams = torch.from_numpy(streams_of(tokens)).to(device)
    together, inject = hyper_mix(streams, gpu)
    for first, last in ((1, 2), (tokens - 2, tokens)):
        part, its_inject = hyper_mix(streams[first:last], gpu)
        assert torch.equal(together.plain()[first:last], part.plain())
        assert inject is not None and its_inject is not None and torch.equal(inject[first:last], its_inject)


def test_what_waits_for_the_next_mix(device: torch.device) -> None:
    """Experts' outputs and a product, added inside of the mix, give the bits of adding them before."""
    gpu, cpu = mix("F32", "Q8_0", device)
    case = mixture("IQ3_XXS", "IQ4_NL", "Q8_0", 2, device)
    inject = np.random.default_rng(8).standard_normal((2, 4)).astype(np.float32)
    start, weight = streams_of(2), torch.from_numpy(inject).to(device)
    want = start.copy()
    _cpu.hyper_combine(want, inject, case.wanted())
    got = torch.from_numpy(start.copy()).to(device)
    mixed, _ = experts_mix(case.layer, case.input(), case.routed(), got, weight, gpu, fine=False)
    assert same_bits(got, want)
    assert np.abs(mixed.plain().cpu().numpy() - cpu.mix(want)[0]).max() <= 1e-5 * np.abs(want).max()
    got = torch.from_numpy(start.copy()).to(device)
    experts_combine(case.layer, case.input(), case.routed(), got, weight)
    assert same_bits(got, want)

    m, w = both("Q8_0", HIDDEN, 96, device, 9)
    y = np.random.default_rng(9).standard_normal((2, 96)).astype(np.float32)
    out = _cpu.linear(w, y)
    want = start.copy()
    _cpu.hyper_combine(want, inject, out)
    got = torch.from_numpy(start.copy()).to(device)
    linear_mix(m, torch.from_numpy(y).to(device), got, weight, gpu)
    assert same_bits(got, want)
    got = torch.from_numpy(start.copy()).to(device)
    hyper_combine(got, weight, torch.from_numpy(out).to(device))
    assert same_bits(got, want)


@pytest.mark.parametrize(("count", "chosen"), [(37, 5), (300, 12), (512, 10)])
def test_routes(count: int, chosen: int, device: torch.device) -> None:
    """Ties to the lower expert, in one lane, in one warp and across them; NaN last, behind -inf; weights to the bit."""
    logits = np.random.default_rng(0).standard_normal((4, count)).astype(np.float32)
    logits[0, [5, 30]] = 9
    logits[1, [5, 36, 5 + 128, 5 + 256] if count > 261 else [5, 36]] = 9
    logits[2, 3] = np.nan
    logits[2, chosen:] = -np.inf  # so that these are chosen, too, and what is no number is not
    logits[3] = 0.25
    want_ids, want_weights = _cpu.route(logits, chosen)
    ids, weights = route(torch.from_numpy(logits).to(device), chosen)
    assert np.array_equal(ids.cpu().numpy(), want_ids) and same_bits(weights, want_weights)


def test_absent_experts_have_no_slot(device: torch.device) -> None:
    layer = mixture("Q8_0", "Q8_0", "Q8_0", 1, device).layer
    table = torch.where(layer.routed.table % 2 == 0, layer.routed.table, -1)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((2, HIDDEN)).astype(np.float32)).to(device)
    router, _ = both("F32", COUNT + 1, HIDDEN, device, 11)
    routed = route_experts(Experts((router,), replace(layer.routed, table=table), layer.shared), x, CHOSEN)
    assert torch.equal(routed.slots_in(table), table[routed.ids.long()]) and (routed.slots_in(table) < 0).any()


@pytest.mark.parametrize(("tokens", "kind", "cols"), [(2, "F32", HIDDEN), (18, "F32", HIDDEN), (5, "BF16", 1024)])
def test_router(tokens: int, kind: str, cols: int, device: torch.device) -> None:
    """The shared expert's row comes last; slots are looked up."""
    layer = mixture("Q8_0", "Q8_0", "Q8_0", 1, device).layer
    router, cpu = both(kind, COUNT + 1, cols, device, 11)
    x = np.random.default_rng(1).standard_normal((tokens, cols)).astype(np.float32)
    logits = _cpu.linear(cpu, x)
    want_ids, want_weights = _cpu.route(np.ascontiguousarray(logits[:, :COUNT]), CHOSEN)
    routed = route_experts(Experts((router,), layer.routed, layer.shared), torch.from_numpy(x).to(device), CHOSEN)
    tolerance = 1e-5 if tokens < 17 else 2e-2
    assert (routed.ids.cpu().numpy() == want_ids).mean() >= (1.0 if tokens < 17 else 0.9)
    assert np.abs(routed.share.cpu().numpy() - logits[:, COUNT]).max() <= tolerance * np.abs(logits).max()
    assert np.abs(routed.weights.cpu().numpy() - want_weights).max() <= tolerance
    assert torch.equal(routed.slots_in(layer.routed.table), COUNT - 1 - routed.ids)


def test_router_of_columns_is_independent(device: torch.device) -> None:
    router, _ = both("F32", 3, 1024, device, 12)
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((6, 1024)).astype(np.float32)).to(device)
    together, alone = torch.empty(6, 3, device=device), torch.empty(1, 3, device=device)
    router_product(router, quantize(x), together)
    for column in (0, 5):
        router_product(router, quantize(x[column : column + 1]), alone)
        assert torch.equal(together[column : column + 1], alone)


def test_argmax(device: torch.device) -> None:
    """Across pieces, the lowest on ties."""
    x = np.random.default_rng(0).standard_normal((2, 9000)).astype(np.float32)
    x[0, [77, 8000]] = 9
    assert argmax(torch.from_numpy(x).to(device)).tolist() == _cpu.argmax(x).tolist()


def test_argmax_of_what_is_not_finite(device: torch.device) -> None:
    """-1, unless it is only that some tokens are barred."""
    x = np.zeros((4, 5000), np.float32)
    x[0, 4999] = np.nan
    x[1, 17] = np.inf
    x[2] = -np.inf
    x[3] = -np.inf
    x[3, 4321] = -9.0
    assert argmax(torch.from_numpy(x).to(device)).tolist() == [-1, -1, -1, 4321]
