"""Around a mix, matrices in tiles give what they give in planes, for every number of columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_rows import rows_of

from jubako.ops.gpu.activation import quantize
from jubako.ops.gpu.combine import product_into
from jubako.ops.gpu.hyper import HyperMix, mix_step
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.planar import repack
from jubako.ops.gpu.tiles import TILED, to_tiles
from jubako.quant import BY_NAME

HIDDEN, STREAMS, RANK = 256, 4, 24


def planes(name: str, rows: int, cols: int, seed: int, device: torch.device) -> Matrix:
    raw = torch.from_numpy(rows_of(name, (rows,), cols, seed)).to(device)
    return Matrix(repack(BY_NAME[name], raw), BY_NAME[name], rows, cols)


def tiles(rows: int, cols: int, seed: int, device: torch.device) -> Matrix:
    raw = torch.from_numpy(rows_of("Q8_0", (rows,), cols, seed)).to(device)
    return Matrix(to_tiles(raw), TILED, rows, cols)


@pytest.mark.parametrize("tokens", [6])
def test_product_and_mix(tokens: int, device: torch.device) -> None:
    """The product, the streams and what is made of them to the bit; the mix but for the order of four numbers."""
    rng = np.random.default_rng(tokens)
    wide, cols = STREAMS * HIDDEN, 512
    y = quantize(torch.from_numpy(rng.standard_normal((tokens, cols)).astype(np.float32)).to(device))
    start = torch.from_numpy(rng.standard_normal((tokens, STREAMS, HIDDEN)).astype(np.float32)).to(device)
    inject = torch.from_numpy(rng.random((tokens, STREAMS)).astype(np.float32)).to(device)
    gamma = torch.from_numpy(rng.random(wide).astype(np.float32)).to(device)
    up, add = planes("Q8_0", wide, RANK + 8, 3, device), planes("F32", STREAMS, wide, 4, device)
    made = []
    for make in (lambda *a: planes("Q8_0", *a), tiles):
        streams, down = start.clone(), make(RANK + 8, wide, 2, device)
        ready = product_into(make(HIDDEN, cols, 1, device), y, streams, inject, gamma)
        mixed, strengths = mix_step(streams, HyperMix(gamma, down, up, add, STREAMS, 1e-6), ready, True)
        assert strengths is not None
        codes = ready.streams.q[:, :, : wide // 32]
        made.append((streams, ready.squares, ready.streams.plain(), codes, mixed.plain(), strengths))
    for a, b in zip(made[0][:4], made[1][:4], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(made[0][4:], made[1][4:], strict=True):
        assert (a - b).abs().max() <= 1e-6 * a.abs().max()
