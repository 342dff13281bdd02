"""Products of up to 16 columns have the CPU's bits; longer ones are near them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_rows import TYPES, rows_of, weight
from gpu_weights import activations, both, same_bits

from jubako import _cpu
from jubako.arch.tensor import Tensor
from jubako.ops.gpu import tile_linear
from jubako.ops.gpu.activation import quantize
from jubako.ops.gpu.cuts import Shape, TileCut, tile_cut
from jubako.ops.gpu.embed import decode, embed
from jubako.ops.gpu.linear import launch, linear, linear_many, quantised
from jubako.ops.gpu.matrix import Matrix, projections
from jubako.ops.gpu.prompt import in_half
from jubako.ops.gpu.tiles import MULTIPLIED, TILES, to_tiles
from jubako.quant import BY_NAME
from jubako.quant import decode as decode_blocks
from jubako.quant.types import BlockType

FLOATS = ("F32", "F16", "BF16")


@pytest.mark.parametrize("name", TYPES)
def test_bits_of_the_cpu(name: str, device: torch.device) -> None:
    """Plain numbers have an order of their own; all others agree to the bit."""
    cols = 256 + (BY_NAME[name].weights if BY_NAME[name].weights in (32, 64) else 0)
    m, w = both(name, 11, cols, device)
    x = activations(2, cols)
    got, want = linear(m, torch.from_numpy(x).to(device)), _cpu.linear(w, x)
    if name in FLOATS:
        assert np.abs(got.cpu().numpy() - want).max() <= 2e-6 * np.abs(want).max()
    else:
        assert same_bits(got, want)


@pytest.mark.parametrize("rows", [11, 25])
def test_bits_of_groups_that_go_beyond_the_rows(rows: int, device: torch.device) -> None:
    """As a coarse output matrix is cut: three groups of four rows for a warp."""
    m, w = both("Q4_0", rows, 512, device)
    x, out = activations(1, 512), torch.empty(1, rows, device=device)
    launch((m,), quantize(torch.from_numpy(x).to(device)), out, shape=Shape(4, 2, 3))
    assert same_bits(out, _cpu.linear(w, x))


@pytest.mark.parametrize("name", ["Q8_0", "Q2_K", "BF16"])
def test_columns_are_independent(name: str, device: torch.device) -> None:
    """Of their number and of what the others hold, also of NaN."""
    m, _ = both(name, 9, 256, device)
    x = torch.from_numpy(activations(5, 256)).to(device)
    alone = torch.cat([linear(m, x[t : t + 1]) for t in range(5)])
    assert torch.equal(linear(m, x), alone)
    assert torch.equal(linear(m, x[2:4]), alone[2:4])
    x[3, 40] = torch.nan
    got = linear(m, x)
    assert got[3].isnan().all() and torch.equal(got[4:], alone[4:])


def tiles(name: str, rows: int, cols: int, device: torch.device, seed: int) -> tuple[Matrix, np.ndarray]:
    """A matrix in tiles, and its blocks."""
    raw = rows_of(name, (rows,), cols, seed)
    return Matrix(to_tiles(torch.from_numpy(raw).to(device), BY_NAME[name]), TILES[name], rows, cols), raw


def shared(shares: int, step: int, ahead: int = 1, alone: bool = False) -> TileCut:
    """A cut into shares, see `TileCut`."""
    return TileCut(shares * (1 if alone else 4), 1, step, True, None, shares, ahead, alone)


def planes(name: str, rows: int, cols: int, device: torch.device, seed: int) -> tuple[Matrix, np.ndarray]:
    """A matrix in planes, and its blocks."""
    return both(name, rows, cols, device, seed)[0], rows_of(name, (rows,), cols, seed)


@pytest.mark.parametrize("name", MULTIPLIED)
@pytest.mark.parametrize("rows, cols, tokens", [(21, 512, 1), (24, 256, 6), (9, 256, 16)])
def test_tiles_have_the_bits_of_the_cpu(name: str, rows: int, cols: int, tokens: int, device: torch.device) -> None:
    """In parts of their columns, too."""
    mine, raw = tiles(name, rows, cols, device, 3)
    x = activations(tokens, cols)
    read = quantize(torch.from_numpy(x).to(device))
    assert same_bits(linear(mine, read), _cpu.linear(weight(name, raw), x))
    parts = torch.empty(cols // 256, tokens, rows, device=device)
    launch((mine,), read, parts, len(parts))
    for u, unit in enumerate(np.split(raw, len(parts), axis=1)):
        part = np.ascontiguousarray(x[:, 256 * u : 256 * u + 256])
        assert same_bits(parts[u], _cpu.linear(weight(name, np.ascontiguousarray(unit)), part))


@pytest.mark.parametrize(
    "name, tokens, cut",
    [
        ("Q4_K", 1, shared(2, 1, alone=True)),
        ("Q6_K", 1, shared(2, 1, ahead=2, alone=True)),
        ("Q8_0", 1, shared(1, 2, alone=True)),
        ("Q4_K", 3, shared(2, 1, ahead=2)),
        ("Q5_K", 4, TileCut(2, 1, 1, True, None, 1, 0)),
        ("Q8_0", 2, shared(2, 1)),
    ],
    ids=str,
)
def test_shares_of_rows_have_the_bits_of_the_cpu(
    name: str, tokens: int, cut: TileCut, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each share goes on where the one before it stopped, over two rounds, too."""
    cols = 512 * cut.shares * cut.step
    monkeypatch.setattr(tile_linear, "tile_cut", lambda *a: cut)
    mine, raw = tiles(name, 21, cols, device, 3)
    x = activations(tokens, cols)
    assert same_bits(linear(mine, torch.from_numpy(x).to(device)), _cpu.linear(weight(name, raw), x))


@pytest.mark.parametrize("name, second, most", [("Q4_K", "Q8_0", 2), ("Q5_K", "F32", 1), ("Q6_K", "Q4_K", 2)])
def test_shares_beside_another_matrix(
    name: str, second: str, most: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With factors, and in parts; one share goes through its units in a loop."""
    cuts = {units: shared(min(units, most), 1, ahead=most - 1, alone=True) for units in (1, 2)}
    monkeypatch.setattr(tile_linear, "tile_cut", lambda rows, units, *a: cuts[units])
    mine, raw = tiles(name, 21, 512, device, 3)
    other, beside = (tiles if second in TILES else planes)(second, 5, 512, device, 4)
    x, factors = activations(1, 512), torch.linspace(0.5, 2, 26, device=device)
    out = torch.empty(1, 26, device=device)
    read = quantize(torch.from_numpy(x).to(device))
    launch((replace(mine, scale=factors[:21]), replace(other, scale=factors[21:])), read, out)
    want = np.concatenate([_cpu.linear(weight(name, raw), x), _cpu.linear(weight(second, beside), x)], 1)
    want *= factors.cpu().numpy()
    assert same_bits(out[:, :21], want[:, :21])
    assert np.abs(out.cpu().numpy() - want).max() <= (2e-6 * np.abs(want).max() if second in FLOATS else 0)
    parts = torch.empty(2, 1, 21, device=device)
    launch((mine,), read, parts, 2)
    for u, unit in enumerate(np.split(raw, 2, axis=1)):
        part = np.ascontiguousarray(x[:, 256 * u : 256 * u + 256])
        assert same_bits(parts[u], _cpu.linear(weight(name, np.ascontiguousarray(unit)), part))


@pytest.mark.parametrize("name, second", [("Q8_0", "Q4_K"), ("Q6_K", "F32"), ("Q5_K", "Q6_K"), ("Q4_K", "Q8_0")])
def test_tiles_beside_rows_of_another_type(name: str, second: str, device: torch.device) -> None:
    """In planes or in tiles themselves, all times factors."""
    mine, raw = tiles(name, 21, 512, device, 3)
    other, beside = (tiles if second in TILES else planes)(second, 11, 512, device, 4)
    x = activations(3, 512)
    factors = torch.linspace(0.5, 2, 32, device=device)
    out = torch.empty(3, 32, device=device)
    launch(
        (replace(mine, scale=factors[:21]), replace(other, scale=factors[21:])),
        quantize(torch.from_numpy(x).to(device)),
        out,
    )
    want = np.concatenate([_cpu.linear(weight(name, raw), x), _cpu.linear(weight(second, beside), x)], 1)
    want *= factors.cpu().numpy()
    if second in FLOATS:
        assert same_bits(out[:, :21], want[:, :21])
        assert np.abs(out.cpu().numpy() - want).max() <= 2e-6 * np.abs(want).max()
    else:
        assert same_bits(out, want)


@pytest.mark.parametrize("name", TILES)
def test_rows_come_out_of_tiles(name: str, device: torch.device) -> None:
    """All of them, as prompts want them, and some, as of an embedding; of blocks of 32 also a quarter of a unit."""
    cols = 512 if BY_NAME[name].weights == 256 else 320
    mine, raw = tiles(name, 37, cols, device, 5)
    want = decode_blocks(name, raw)
    assert same_bits(decode(mine, torch.empty(37, cols, device=device)), want)
    ids = [36, 0, 17, 8, 17]
    assert same_bits(embed(mine, torch.tensor(ids, device=device)), want[ids])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="hundreds of programs take the interpreter minutes")
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_tiles_of_many_rows_have_the_bits_of_the_cpu(name: str, tokens: int, device: torch.device) -> None:
    """As projections and output matrices have: other programs than those of few rows, several rounds of units."""
    rows, cols = 65541, 2560
    raw = rows_of(name, (997,), cols, 3)
    raw = np.resize(raw, (rows, raw.shape[1]))  # 997 is a prime, so that tiles differ
    x = activations(tokens, cols)
    read = quantize(torch.from_numpy(x).to(device))
    for count in (8195, rows):
        data = to_tiles(torch.from_numpy(raw[:count]).to(device), BY_NAME[name])
        got = linear(Matrix(data, TILES[name], count, cols), read)
        assert same_bits(got, _cpu.linear(weight(name, raw[:count]), x))


def test_longer_rows_of_weights(device: torch.device) -> None:
    """A row padded to 768 columns meets 640 values."""
    m, w = both("Q2_K", 9, 768, device)
    x = activations(2, 640)
    assert same_bits(linear(m, torch.from_numpy(x).to(device)), _cpu.linear(w, x))


def test_prompt(device: torch.device) -> None:
    m, w = both("Q5_1", 40, 288, device)
    x = activations(20, 288)
    want = _cpu.linear(w, x)
    got = linear(m, torch.from_numpy(x).to(device)).cpu().numpy()
    assert np.abs(got - want).max(1).max() <= 2e-3 * np.abs(want).max()
    assert (np.abs(got - want).max(1) <= 3e-3 * np.abs(want).max(1)).all()


def test_prompt_near_the_largest_half(device: torch.device) -> None:
    """Inputs and sums far beyond 65504."""
    m, w = both("Q8_0", 8, 256, device)
    x = activations(17, 256) * np.float32(1e6)
    want = _cpu.linear(w, x)
    got = linear(m, torch.from_numpy(x).to(device)).cpu().numpy()
    assert np.isfinite(got).all() and (np.abs(got - want).max(1) <= 3e-3 * np.abs(want).max(1)).all()


def stored(name: str, rows: int, seed: int) -> tuple[Tensor, _cpu.Weight]:
    from pathlib import Path

    from block_rows import rows_of, weight

    kind: BlockType = BY_NAME[name]
    raw = rows_of(name, (rows,), 256, seed)
    return Tensor(name, kind, (rows, 256), raw, Path(), 0), weight(name, raw)


@pytest.mark.parametrize("tokens", [2, 18])
def test_projections_of_several_types(tokens: int, device: torch.device) -> None:
    """Grouped by type, given back in the order asked for."""
    pairs = [stored("Q8_0", 10, 1), stored("F32", 3, 2), stored("Q8_0", 6, 3), stored("Q4_K", 5, 4)]
    joint = projections([tensor for tensor, _ in pairs], device)
    assert len(joint.matrices) == 3 and joint.rows == 24
    x = activations(tokens, 256)
    outs = linear_many(joint, torch.from_numpy(x).to(device))
    for got, (_, w) in zip(outs, pairs, strict=True):
        want = _cpu.linear(w, x)
        assert np.abs(got.cpu().numpy() - want).max() <= (1e-6 if tokens < 17 else 2e-3) * np.abs(want).max()


@pytest.mark.parametrize("fine", [True, False])
def test_quantised(fine: bool, device: torch.device) -> None:
    """Scale and codes as csrc/activation.h has them; zero, NaN and infinite blocks."""
    x = activations(2, 96)
    x[0, :32] = 0
    most = 32385 if fine else 127
    read = quantize(torch.from_numpy(x).to(device), fine)
    q = read.q.cpu().numpy().astype(np.int32)[:, :, :3]
    low = np.concatenate([q[:, 0], q[:, 1]], -1)
    codes = low + 256 * np.concatenate([q[:, 2], q[:, 3]], -1) if fine else low
    blocks = x.reshape(2, 3, 32)
    largest = np.abs(blocks).max(-1)
    assert np.array_equal(read.d.cpu().numpy()[:, :3], largest / np.float32(most))
    inverse = np.divide(np.float32(most), largest, out=np.zeros_like(largest), where=largest > 0)
    assert np.array_equal(codes, np.rint(blocks * inverse[..., None]).astype(np.int32))
    assert np.array_equal(read.s.cpu().numpy()[:, 0, :3], codes[..., :16].sum(-1))
    assert np.array_equal(read.plain().cpu().numpy(), x)


def test_a_prompts_halves_of_few_tokens_are_read_as_a_steps(device: torch.device, rng: np.random.Generator) -> None:
    """As the draft layer's are, which takes a prompt's last token by itself."""
    x = torch.from_numpy(rng.standard_normal((1, 96)).astype(np.float32)).to(device)
    assert torch.allclose(quantised(in_half(x)).plain(), x, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [640, 2560, 13952, 16384, 248320])
@pytest.mark.parametrize("units", [1, 7, 10, 12, 20, 24, 40])
@pytest.mark.parametrize("packed", [False, True])
def test_tiles_are_cut_as_registers_allow(rows: int, units: int, packed: bool) -> None:
    """Weights and columns of a round lie in registers together: 10 numbers a unit of rows at most, 6 to 10 of columns,
    for 32 lanes a pair of blocks; where a warp has a whole unit 34 and 10."""
    for tokens in (1, 3, 4, 5, 8, 16):
        cut = tile_cut(rows, units, tokens, packed)
        assert units % (cut.step * max(cut.shares, 1)) == 0 and 4 * cut.fours >= tokens
        column = 10 if packed else 6
        if cut.shares:
            rounds = units // (cut.step * cut.shares)
            assert tokens <= (1 if cut.alone else 4)
            assert cut.warps == cut.shares * (1 if cut.alone else 4) or (cut.ahead == 0 and cut.warps == 2)
            assert 0 <= cut.ahead <= rounds and (cut.ahead > 0 or cut.shares == 1)
            unit = (27 if packed else 34) if cut.alone else 10
            held = 4 * cut.shares // cut.warps if not cut.alone else 1
            held *= cut.step * (unit * max(cut.ahead, 1) + column) + 4
        else:
            pairs = 4 // cut.warps
            held = pairs * cut.step * (10 + (column if cut.at_once else 0)) + 4 * pairs * cut.fours
        assert held <= (cut.registers or 255), (tokens, cut, held)
        assert not cut.at_once or cut.fours == 1
