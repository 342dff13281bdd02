"""Planar layouts hold the weights that the reference decodes, bit for bit, whatever pieces they were repacked in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_rows import TYPES, rows_of
from gpu_weights import both

from jubako.ops.gpu import planar
from jubako.ops.gpu.embed import embed
from jubako.ops.gpu.matrix import Matrix
from jubako.quant import BY_NAME, decode


@pytest.mark.parametrize("name", (*TYPES, "PQ2_0"))
def test_decoded_rows(name: str, device: torch.device) -> None:
    """Random blocks; a row of blocks of 32 ends inside of a unit."""
    kind = BY_NAME[name]
    cols = 256 + (kind.weights if kind.weights in (32, 64) else 0)
    raw = rows_of(name, (5,), cols)
    m = Matrix(planar.repack(kind, torch.from_numpy(raw).to(device)), kind, 5, cols)
    got = embed(m, torch.tensor([3, 0, 4, 3], device=device)).cpu().numpy()
    assert np.array_equal(got, decode(name, raw)[[3, 0, 4, 3]])


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "IQ3_XXS", "F16"])
def test_pieces_do_not_matter(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(rows_of(name, (3, 7), 512)).to(device)
    whole = planar.repack(BY_NAME[name], raw)
    monkeypatch.setattr(planar, "PIECE", 1500)
    assert torch.equal(planar.repack(BY_NAME[name], raw), whole)
    for i in range(3):
        assert torch.equal(planar.repack(BY_NAME[name], raw[i]), whole[i])


def test_sizes(device: torch.device) -> None:
    """What a layout says of its size is what it fills."""
    for name in TYPES:
        kind = BY_NAME[name]
        raw = torch.from_numpy(rows_of(name, (1, 3), 512)).to(device)
        assert sum(p.numel() for p in planar.planes(kind, raw)) == 3 * planar.LAYOUTS[name].row_bytes(512)


def test_factor_of_a_tensor(device: torch.device) -> None:
    """The side factors of NVFP4 files, one for each row of joined tensors."""
    m, _ = both("NVFP4", 4, 256, device)
    factors = torch.tensor([2.0, 0.5, 1.0, -4.0], device=device)
    scaled = Matrix(m.data, m.type, m.rows, m.cols, factors)
    ids = torch.arange(4, device=device)
    assert torch.equal(embed(scaled, ids), embed(m, ids) * factors[:, None])
