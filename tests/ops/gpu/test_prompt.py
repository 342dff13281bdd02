"""What prompts alone take: decoded factors of tl.dot, the order of uses, streams that settle, gates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from block_rows import TYPES, rows_of
from gpu_weights import slots

from jubako.ops.gpu.expert_prompt import Cut, in_order, outputs_of
from jubako.ops.gpu.hyper_prompt import HALF, PromptParts, gates, settle
from jubako.ops.gpu.operand import SCALE, counting, operand, place_of
from jubako.ops.gpu.planar import repack
from jubako.ops.gpu.prompt import Halves
from jubako.ops.gpu.shared_prompt import shared_of_prompt
from jubako.ops.gpu.target import target
from jubako.ops.gpu.uses import tiles_of
from jubako.quant import BY_NAME, decode


@triton.jit
def _write(
    base, rows, counting, out,
    BLOCKS: tl.constexpr, UNITS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALE: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """A matrix of up to 16 rows in its own order: number k comes from `place_of(k)`."""
    number = tl.arange(0, 16)
    row = tl.load(counting + tl.minimum(number, rows - 1)[None, :, None])
    j = tl.load(counting + tl.arange(0, 4)[:, None, None])
    pair = tl.load(counting + tl.arange(0, 2)[None, None, :])
    k = tl.arange(0, 128)
    for unit in range(UNITS):
        w = operand(base, rows, BLOCKS, row, unit, j, pair, counting, 16, TYPE, EVEN, SCALE, FORM)
        one = (place_of(k)[None, :] == k[:, None]).to(tl.float16)
        numbers = tl.dot(w, one)
        tl.store(out + number[:, None] * UNITS * 128 + unit * 128 + k[None, :], numbers)


@pytest.mark.parametrize("name", TYPES)
def test_factors_are_the_weights(name: str, device: torch.device) -> None:
    """Scales, minima and products are rounded to halves, each once."""
    kind = BY_NAME[name]
    cols = 256 + (kind.weights if kind.weights in (32, 64) else 0)
    raw = rows_of(name, (5,), cols)
    blocks, units = cols // 32, -(-cols // 128)
    out = torch.zeros(16, units * 128, device=device)
    data = repack(kind, torch.from_numpy(raw).to(device))
    _write[(1,)](
        data, 5, counting(device), out,
        BLOCKS=blocks, UNITS=units, TYPE=kind.id, EVEN=blocks % 4 == 0, SCALE=SCALE, FORM=target(device).one_column,
    )  # fmt: skip
    got, want = out[:5, :cols].cpu().numpy() / SCALE, decode(name, raw)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()
    assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("tile", [16, 64])
def test_uses_by_expert(tile: int, device: torch.device) -> None:
    """Every use once, in tiles of its expert; one expert takes most."""
    rng = np.random.default_rng(3)
    ids = np.where(rng.random((50, 4)) < 0.6, 7, rng.integers(0, 11, (50, 4))).astype(np.int32)
    tiles = tiles_of(torch.from_numpy(ids).to(device), 11, tile)
    uses, expert, first, last = (t.cpu().numpy() for t in (tiles.uses, tiles.expert, tiles.first, tiles.last))
    assert np.array_equal(np.sort(uses), np.arange(200))
    found = []
    for e, a, b in zip(expert, first, last, strict=True):
        if e >= 0:
            assert 0 < b - a <= tile and (ids.ravel()[uses[a:b]] == e).all()
            found += list(range(a, b))
    assert found == list(range(200))


def test_tiles_do_not_change_an_expert(device: torch.device) -> None:
    """Narrow and wide tiles; the second token's input is the first one's, a factor smaller."""
    mine, _ = slots("IQ3_XXS", "IQ4_NL", 3, 160, 256, device)
    x = torch.randn(20, 256, generator=torch.Generator().manual_seed(0)).to(device).half()
    x[1] = x[0]
    factor = torch.ones(20, 1, device=device)
    factor[0] = 3.0
    ids = torch.tensor([[0, 2]], dtype=torch.int32, device=device).repeat(20, 1)
    wide = Halves(in_order(x), factor)
    outputs = outputs_of(mine, wide, tiles_of(ids, 3, 16), 2, Cut(16, 0, 64, 64))
    others = outputs_of(mine, wide, tiles_of(ids, 3, 32), 2, Cut(32, 0, 128, 128))
    parted = outputs_of(mine, wide, tiles_of(ids, 3, 48), 2, Cut(32, 16, 64, 64))  # 20 uses: all in the first part
    narrow = Cut(16, 16, 64, 64)
    both = outputs_of(mine, wide, tiles_of(ids, 3, narrow.tile), 2, narrow)
    scale = others.float().abs().max()
    for found in (others, parted, both):
        assert (outputs.float() - found.float()).abs().max() <= 1e-3 * scale
    assert (outputs[0] - outputs[2]).abs().max() > 0.1 * scale


@pytest.mark.parametrize("down_cols", [0, 192])
def test_the_library_gives_the_shared_expert_as_tiles_do(down_cols: int, device: torch.device) -> None:
    """Rows scaled down, and hidden values padded with zeros."""
    mine, _ = slots("Q8_0", "Q4_0", 1, 160, 256, device, down_cols)
    x = torch.randn(18, 256, generator=torch.Generator().manual_seed(3)).to(device).half()
    factor = torch.linspace(0.5, 3.0, 18, device=device)[:, None]
    ids = torch.zeros(18, 1, dtype=torch.int32, device=device)
    tiled = outputs_of(mine, Halves(in_order(x), factor), tiles_of(ids, 1, 32), 1, Cut(32, 0, 128, 256))
    found = shared_of_prompt(mine, Halves(x, factor))
    assert found.shape == (18, 256)
    assert (found - tiled.float()).abs().max() <= 2e-3 * found.abs().max()


def test_streams_settle(device: torch.device) -> None:
    """The weighted sum of all experts enters the streams; then norms."""
    generator = torch.Generator().manual_seed(1)
    streams, outputs, shared = (torch.randn(*s, generator=generator) for s in ((5, 4, 96), (5, 3, 96), (5, 96)))
    inject, weights, share, gamma = (torch.randn(*s, generator=generator) for s in ((5, 4), (5, 3), (5,), (4 * 96,)))
    given = (weights[:, :, None] * outputs).sum(1) + torch.sigmoid(share)[:, None] * shared
    want = streams + inject[:, :, None] * given[:, None]
    normed = want * torch.rsqrt(want.square().mean(-1, keepdim=True) + 1e-6) * gamma.view(4, 96)
    got = streams.clone().to(device)
    parts = PromptParts(
        (outputs * HALF).half().view(15, 96).to(device), (shared * HALF).to(device), weights.to(device),
        share.to(device),
    )  # fmt: skip
    halves = settle(got, inject.to(device), parts, gamma.to(device), 1e-6)
    assert (got.cpu() - want).abs().max() <= 2e-3 * want.abs().max()
    assert (halves.cpu().float().view(5, 4, 96) - normed).abs().max() <= 2e-3 * normed.abs().max()
    again = streams.clone().to(device)
    settle(again, inject.to(device), given.to(device), None)
    assert (again.cpu() - want).abs().max() <= 1e-5 * want.abs().max()


def test_gates(device: torch.device) -> None:
    """More tokens than a tile's, elements that fill none."""
    generator = torch.Generator().manual_seed(2)
    narrow, up, normed = (torch.randn(*s, generator=generator).half() for s in ((70, 64), (4 * 96, 64), (70, 4 * 96)))
    factor = torch.rand(70, generator=generator)
    sums = (narrow.float() @ up.float().T) * factor[:, None]
    want = (torch.sigmoid(sums) * normed.float()).view(70, 4, 96).mean(1)
    got = gates(narrow.to(device), factor.to(device), up.to(device), normed.to(device), 4)
    assert (got.cpu().float() - want).abs().max() <= 2e-3 * want.abs().max()
