"""Rows of blocks for the tests of the products, and the model those are held against."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jubako import _cpu
from jubako.quant import BY_NAME, decode

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "quant_blocks.npz")
FLOATS = ("F32", "F16", "BF16")
GOLDEN_TYPES = tuple(sorted({name.split(".")[0] for name in GOLDEN.files}))
TYPES = (*GOLDEN_TYPES, "Q1_0", "TQ1_0", "TQ2_0", *FLOATS)
ISAS = tuple(isa for isa in ("avx2", "avx512") if _cpu.isa_supported(isa))


def rows_of(name: str, shape: tuple[int, ...], cols: int, seed: int = 0) -> np.ndarray:
    """uint8 [*shape, row_bytes]: rows of `cols` weights of a block type, of ordinary size."""
    rng = np.random.default_rng(seed)
    block_type = BY_NAME[name]
    count = cols // block_type.weights
    if name in FLOATS:
        values = (rng.standard_normal((*shape, cols)) * 0.1).astype(np.float32)
        if name == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[..., 1::2]).view(np.uint8)
        return values.astype(np.float32 if name == "F32" else np.float16).view(np.uint8)
    if name in GOLDEN_TYPES:
        blocks = GOLDEN[f"{name}.quantized"].reshape(-1, block_type.bytes)
        return blocks[rng.integers(0, len(blocks), (*shape, count))].reshape(*shape, -1)
    blocks = rng.integers(0, 256, (*shape, count, block_type.bytes), dtype=np.uint8)
    at = 0 if name == "Q1_0" else block_type.bytes - 2
    blocks[..., at : at + 2] = rng.uniform(0.01, 0.1, (*shape, count, 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape, -1)


def weight(name: str, rows: np.ndarray, scale: np.ndarray | None = None) -> _cpu.Weight:
    """The rows as the kernels take them."""
    return _cpu.Weight(rows, BY_NAME[name].id, scale)


def floats_of(name: str, rows: np.ndarray) -> np.ndarray:
    """The rows' weights in float64."""
    return np.asarray(decode(name, rows)).astype(np.float64)


def quantised(x: np.ndarray, most: int = 127) -> np.ndarray:
    """x as experts see it: blocks of 32 in 8 bits with a float32 scale; float64 [T, K]."""
    tokens, cols = x.shape
    blocks = np.zeros((tokens, (cols + 31) // 32 * 32), np.float32)
    blocks[:, :cols] = x
    blocks = blocks.reshape(tokens, -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(most) / np.where(largest > 0, largest, 1), 0).astype(np.float32)
    codes = np.rint(blocks * inverse).astype(np.float64)
    return (codes * (largest / np.float32(most)).astype(np.float64)).reshape(tokens, -1)[:, :cols]


def finely_quantised(x: np.ndarray) -> np.ndarray:
    """x as all other products see it: in 16 bits; float64 [T, K]."""
    return quantised(x, 32385)


def model(name: str, rows: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """rows [N] times x [T, K] in float64, [T, N], and the sums of magnitudes that rounding is measured by."""
    w = floats_of(name, rows)
    q = x.astype(np.float64) if name in FLOATS else finely_quantised(x)
    return q @ w.T, np.abs(q) @ np.abs(w).T


def bits(y: np.ndarray) -> np.ndarray:
    """Float32 as integers, so that equal means equal in every bit."""
    return np.ascontiguousarray(y).view(np.uint32)
