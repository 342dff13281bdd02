"""Whether a card's tensor cores give the right sums through the kernels as its compiler makes them.

Their operands have to lie in certain lanes, which the compiler decides; wrong places give wrong numbers, and no error.
`tools/compile_kernels.py` looks at the places, this at the numbers, once a card, before weights are laid out for them.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import numpy as np
import torch

from ...quant import BY_NAME, decode
from .activation import quantize
from .hyper import HyperMix
from .hyper_gates import tile_mix
from .linear import launch
from .matrix import Matrix
from .tiles import MULTIPLIED, TILES, to_tiles

log = logging.getLogger(__name__)
SHAPES = ((40, 512, 6), (40, 1024, 3), (40, 2048, 1), (8200, 256, 3), (8200, 512, 1))
"""Rows, columns, tokens: of all cuts of a launch."""
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1)}
"""First byte of a block's scales, and how many halves; (0, 1) where there is nothing else."""
MIX = ((5, 4, 64, 64), (1, 4, 64, 64))
"""Tokens, streams, hidden size, rank: of several columns and of a single one, whose blocks take columns' places."""


@lru_cache(maxsize=64)
def tiles_are_right(device: torch.device, name: str) -> bool:
    """Small products of tiles of a block type, and a hyper-connection's mix, against float64."""
    right = name not in MULTIPLIED or all(_products_agree(device, name, *shape) for shape in SHAPES)
    right = right and all(_mix_agrees(device, name, *shape) for shape in MIX)
    if not right:
        log.warning(
            "this card's compiler places tensor core operands otherwise than expected: products of %s avoid them", name
        )
    return right


def _products_agree(device: torch.device, name: str, rows: int, cols: int, tokens: int) -> bool:
    rng = np.random.default_rng(rows)
    tiles, weights = _tiles(rng, rows, cols, device, name)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    got = torch.zeros(tokens, rows, device=device)
    launch((tiles,), quantize(torch.from_numpy(x).to(device)), got)
    return _near(got, x.astype(np.float64) @ weights.T)


def _mix_agrees(device: torch.device, name: str, tokens: int, streams: int, hidden: int, rank: int) -> bool:
    rng = np.random.default_rng(rank)
    down, a = _tiles(rng, rank, streams * hidden, device, name)
    up, b = _tiles(rng, streams * hidden, rank, device, name if rank % BY_NAME[name].weights == 0 else "Q8_0")
    values = rng.standard_normal((tokens, streams, hidden)).astype(np.float32)
    gamma = rng.uniform(1e-6, 3e-6, streams * hidden).astype(np.float32)  # the gates are neither open nor shut
    mix = HyperMix(torch.from_numpy(gamma).to(device), down, up, None, streams, 1e-6)
    got, _ = tile_mix(torch.from_numpy(values).to(device), mix, fine=True)
    normed = values / np.sqrt((values.astype(np.float64) ** 2).mean(2, keepdims=True) + 1e-6)
    normed *= gamma.reshape(streams, hidden)
    low = normed.reshape(tokens, -1) @ a.T / streams
    y = (low / (1 + np.exp(-low)) @ b.T).reshape(normed.shape)
    return _near(got.plain(), (normed / (1 + np.exp(-y))).mean(1))


def _tiles(
    rng: np.random.Generator, rows: int, cols: int, device: torch.device, name: str
) -> tuple[Matrix, np.ndarray]:
    """A random matrix in tiles, and its weights float64 [rows, cols]."""
    kind = BY_NAME[name]
    raw = rng.integers(0, 256, (rows, cols // kind.weights, kind.bytes), dtype=np.uint8)
    at, count = SCALES.get(name, (0, 1))
    scales = rng.uniform(0.5, 2.0, (*raw.shape[:2], count)).astype(np.float16)
    raw[..., at : at + 2 * count] = scales.view(np.uint8)
    raw = raw.reshape(rows, -1)
    tiles = Matrix(to_tiles(torch.from_numpy(raw).to(device), kind), TILES[name], rows, cols)
    return tiles, decode(name, raw).astype(np.float64)


def _near(got: torch.Tensor, want: np.ndarray) -> bool:
    return bool(np.abs(got.cpu().numpy() - want).max() < 1e-3 * np.abs(want).max())
