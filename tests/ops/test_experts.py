"""The mixture of experts: its parts are the products of test_linear, and it must be exactly the sum of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from block_rows import FLOATS, ISAS, bits, quantised, rows_of, weight

from jubako import _cpu
from jubako.quant import BY_ID

HIDDEN, WIDTH, EXPERTS, CHOSEN = 512, 320, 9, 4


@dataclass
class Mixture:
    """Weights of one layer, and a way to run it."""

    gate: _cpu.Weight
    up: _cpu.Weight
    down: _cpu.Weight
    shared: tuple[_cpu.Weight, ...]

    def __call__(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return _cpu.experts(self.gate, self.up, self.down, x, ids, weights, *self.shared)


def mixture(gate: str, down: str, shared: str | None = "Q8_0", down_cols: int = WIDTH) -> Mixture:
    """Experts of given types, 512 -> 320 -> 512, and a shared expert beside them."""
    parts: tuple[_cpu.Weight, ...] = ()
    if shared is not None:
        parts = (
            weight("F32", rows_of("F32", (1,), HIDDEN, 4)),
            weight(shared, rows_of(shared, (WIDTH,), HIDDEN, 5)),
            weight(shared, rows_of(shared, (WIDTH,), HIDDEN, 6)),
            weight(shared, rows_of(shared, (HIDDEN,), WIDTH, 7)),
        )
    return Mixture(
        weight(gate, rows_of(gate, (EXPERTS, WIDTH), HIDDEN, 1)),
        weight(gate, rows_of(gate, (EXPERTS, WIDTH), HIDDEN, 2)),
        weight(down, rows_of(down, (EXPERTS, HIDDEN), down_cols, 3)),
        parts,
    )


def routes(tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, ids and weights of some tokens; expert 0 is a favourite."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(EXPERTS)[:CHOSEN] for _ in range(tokens)]).astype(np.int32)
    ids[:, 0] = np.where((ids[:, 1:] == 0).any(1), ids[:, 0], 0)
    weights = rng.dirichlet(np.ones(CHOSEN), tokens).astype(np.float32)
    return rng.standard_normal((tokens, HIDDEN)).astype(np.float32), ids, weights


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x.astype(np.float64)))


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32(a·b + c): the product is exact in float64."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def product(w: _cpu.Weight, x: np.ndarray, expert: int) -> np.ndarray:
    """`linear` of what an expert sees of x: experts quantise it once, `linear` by itself more finely."""
    seen = x if BY_ID[w.type].name in FLOATS else quantised(x).astype(np.float32)
    return _cpu.linear(w, seen, expert=expert)


def by_parts(layer: Mixture, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The same through `linear`, one token and one expert at a time, silu in float64."""
    out = np.zeros((len(x), layer.down.rows), np.float32)
    for t in range(len(x)):
        row = x[t : t + 1]
        uses = [(layer.gate, layer.up, layer.down, int(e), weights[t, k]) for k, e in enumerate(ids[t]) if e >= 0]
        if layer.shared:
            router, gate, up, down = layer.shared
            share = 1 / (1 + np.exp(-_cpu.linear(router, row)[0, 0].astype(np.float64)))
            uses.append((gate, up, down, 0, np.float32(share)))
        for gate, up, down, e, share in uses:
            hidden = (silu(product(gate, row, e)) * product(up, row, e)).astype(np.float32)
            out[t] = fused(np.float32(share), product(down, hidden, e)[0], out[t])
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("gate", "down", "shared"),
    [
        ("IQ3_XXS", "IQ4_NL", "Q8_0"),
        ("Q4_K", "Q5_1", "Q8_0"),
        ("IQ2_XXS", "MXFP4", None),
        ("Q2_0", "Q2_0", "BF16"),
        ("NVFP4", "NVFP4", "F32"),
        ("BF16", "BF16", "BF16"),
        ("IQ1_M", "F16", "IQ4_NL"),
    ],
)
def test_sum_of_parts(isa: str, gate: str, down: str, shared: str | None) -> None:
    _cpu.set_isa(isa)
    layer = mixture(gate, down, shared)
    x, ids, weights = routes(6)
    want = by_parts(layer, x, ids, weights)
    for tokens in (1, 2, 6):
        got = layer(x[:tokens], ids[:tokens], weights[:tokens])
        # silu may differ in its last place, and then a hidden value in its last step of 8 bits
        assert np.abs(got - want[:tokens]).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("isa", ISAS)
def test_silu_to_the_last_place(isa: str) -> None:
    """With the identity as down matrix an expert shows its hidden values."""
    _cpu.set_isa(isa)
    gate = rows_of("F32", (1, WIDTH), HIDDEN, 1)
    up = rows_of("F32", (1, WIDTH), HIDDEN, 2)
    identity = np.eye(WIDTH, dtype=np.float32)[None].view(np.uint8)
    layer = Mixture(weight("F32", gate), weight("F32", up), weight("F32", identity), ())
    x = 20 * routes(3)[0]
    got = layer(x, np.zeros((3, 1), np.int32), np.ones((3, 1), np.float32))
    g, u = _cpu.linear(layer.gate, x), _cpu.linear(layer.up, x)
    assert np.abs(g).max() > 88
    assert (np.abs(got - silu(g) * u) <= 5e-7 * np.abs(silu(g) * u) + 1e-34).all()


@pytest.mark.parametrize(("gate", "down"), [("IQ3_XXS", "IQ4_NL"), ("Q4_K", "Q5_1"), ("BF16", "NVFP4")])
def test_bits_depend_on_nothing(gate: str, down: str) -> None:
    """Not on how many tokens come together, which experts they share, the instruction set or the threads."""
    layer = mixture(gate, down)
    tokens = 70
    x, ids, weights = routes(tokens)
    _cpu.set_isa("avx2")
    _cpu.set_threads(1)
    want = bits(np.concatenate([layer(x[t : t + 1], ids[t : t + 1], weights[t : t + 1]) for t in range(tokens)]))
    for isa in ISAS:
        _cpu.set_isa(isa)
        for threads in (1, 2, 4):
            _cpu.set_threads(threads)
            for start, stop in ((0, 70), (0, 4), (4, 21), (21, 23)):
                got = layer(x[start:stop], ids[start:stop], weights[start:stop])
                assert np.array_equal(bits(got), want[start:stop]), (isa, threads, start, stop)


def test_absent_experts_add_nothing() -> None:
    layer = mixture("Q4_K", "Q5_0")
    x, ids, weights = routes(5)
    ids[2, 1] = -1
    ids[4] = -1
    got = layer(x, ids, weights)
    kept = ids >= 0
    for t in (2, 4):
        alone = layer(x[t : t + 1], ids[t : t + 1, kept[t]], weights[t : t + 1, kept[t]])
        assert np.array_equal(bits(got[t]), bits(alone[0]))


def test_padded_down_rows() -> None:
    """Down matrices of 512 columns for a hidden width of 320, as files that pad 640 to 768 have them."""
    for tokens in (1, 30):
        x, ids, weights = routes(tokens)
        layer = mixture("IQ2_XXS", "Q2_K", None, down_cols=512)
        want = by_parts(layer, x, ids, weights)
        assert np.abs(layer(x, ids, weights) - want).max() <= 2e-3 * np.abs(want).max()


def test_fused_gate_up_and_scales() -> None:
    """Gate and up as halves of one stack, and a scale for each expert."""
    stack = rows_of("NVFP4", (EXPERTS, 2 * WIDTH), HIDDEN, 1)
    scale = np.linspace(0.1, 0.9, EXPERTS).astype(np.float32)
    down = weight("NVFP4", rows_of("NVFP4", (EXPERTS, HIDDEN), WIDTH, 3), scale[::-1].copy())
    layer = Mixture(weight("NVFP4", stack[:, :WIDTH], scale), weight("NVFP4", stack[:, WIDTH:], scale), down, ())
    x, ids, weights = routes(3)
    want = by_parts(layer, x, ids, weights)
    assert np.abs(layer(x, ids, weights) - want).max() <= 2e-3 * np.abs(want).max()


def test_not_a_number_stays_with_its_token() -> None:
    layer = mixture("IQ3_XXS", "IQ4_NL")
    for tokens in (4, 40):
        x, ids, weights = routes(tokens)
        clean = layer(x, ids, weights)
        x[1, 5] = np.nan
        got = layer(x, ids, weights)
        assert np.isnan(got[1]).all()
        assert np.array_equal(bits(np.delete(got, 1, 0)), bits(np.delete(clean, 1, 0)))


def test_refusals() -> None:
    layer = mixture("Q8_0", "Q8_0")
    x, ids, weights = routes(2)
    with pytest.raises(ValueError, match="expert 9 of 9"):
        layer(x, np.full_like(ids, EXPERTS), weights)
    with pytest.raises(ValueError, match="ids and route_weights"):
        layer(x, ids[:1], weights)
    with pytest.raises(ValueError, match="do not fit"):
        _cpu.experts(layer.gate, layer.down, layer.down, x, ids, weights)
    with pytest.raises(ValueError, match="x has 480 columns"):
        layer(np.ascontiguousarray(x[:, :480]), ids, weights)
