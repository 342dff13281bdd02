"""Whether a card's tensor cores give the right sums through the kernels as its compiler makes them.

Their operands have to lie in certain lanes, which the compiler decides; wrong places give wrong numbers, and no error.
`tools/compile_kernels.py` looks at the places, this at the numbers, once a card, before weights are laid out for them.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import numpy as np
import torch

from ...quant import decode
from .activation import quantize
from .linear import launch
from .matrix import Matrix
from .tiles import TILED, to_tiles

log = logging.getLogger(__name__)
SHAPES = ((40, 512, 6), (8200, 256, 3))  # rows, columns, tokens: of both cuts of a launch


@lru_cache(maxsize=16)
def tiles_are_right(device: torch.device) -> bool:
    """Small products of tiles against float64."""
    right = all(_agrees(device, *shape) for shape in SHAPES)
    if not right:
        log.warning("this card's compiler places tensor core operands otherwise than expected: products avoid them")
    return right


def _agrees(device: torch.device, rows: int, cols: int, tokens: int) -> bool:
    rng = np.random.default_rng(rows)
    raw = rng.integers(0, 256, (rows, cols // 32, 34), dtype=np.uint8)
    raw[..., :2] = rng.uniform(0.5, 2.0, (rows, cols // 32, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(rows, -1)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    want = x.astype(np.float64) @ decode("Q8_0", raw).astype(np.float64).T
    got = torch.zeros(tokens, rows, device=device)
    tiles = Matrix(to_tiles(torch.from_numpy(raw).to(device)), TILED, rows, cols)
    launch((tiles,), quantize(torch.from_numpy(x).to(device)), got)
    return bool(np.abs(got.cpu().numpy() - want).max() < 1e-3 * np.abs(want).max())
