"""Random weights written directly as blocks of any type: random codes under chosen scales, no quantiser needed.

A block's codes are uniform random bits. What remains is its scale: `deviation` over the root mean square that the codes
decode to under a scale of one (found once per type by decoding a sample), spread by a random factor so that
blocks differ. Types whose codes are not symmetric get scales of both signs, or a minimum that centres them: a mean
would grow from layer to layer into one direction that all tokens share.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..quant import BlockType, block_type, decode

Bytes = NDArray[np.uint8]

_SPREAD = 0.35  # scales lie within a factor exp(±_SPREAD) of each other


@dataclass(frozen=True)
class Recipe:
    """Where a block keeps its half-precision scales, and what else its random bytes need.

    scale    byte of the scale d
    minimum  byte of the second half-precision field and its ratio to d, centring the codes
    signed   give half of the blocks a negative scale
    adjust   changes random bytes in place into allowed or centred ones
    """

    scale: int = 0
    minimum: tuple[int, float] | None = None
    signed: bool = False
    adjust: Callable[[Bytes], None] | None = None


def _q2_k(blocks: Bytes) -> None:
    """Every group of 16: minimum code = scale code."""
    low = blocks[:, :16] & 15
    blocks[:, :16] = low | low << 4


def _q45_k(blocks: Bytes) -> None:
    """Every group of 32: minimum code = scale code (bytes 4 to 15 pack both in 6 bits)."""
    blocks[:, 8:12] = blocks[:, 4:8]
    low = blocks[:, 12:16] & 15
    blocks[:, 12:16] = low | low << 4


def _tq2_0(blocks: Bytes) -> None:
    """Only the codes 0, 1, 2: three becomes two."""
    codes = blocks[:, :64]
    codes &= ~(codes & codes >> 1 & 0x55)


_RECIPES: dict[str, Recipe] = {
    "Q4_0": Recipe(signed=True),
    "Q4_1": Recipe(minimum=(2, -7.5), signed=True),
    "Q5_0": Recipe(signed=True),
    "Q5_1": Recipe(minimum=(2, -15.5), signed=True),
    "Q8_0": Recipe(signed=True),
    "Q2_K": Recipe(80, (82, 1.5), adjust=_q2_k),
    "Q3_K": Recipe(108),
    "Q4_K": Recipe(0, (2, 7.5), adjust=_q45_k),
    "Q5_K": Recipe(0, (2, 15.5), adjust=_q45_k),
    "Q6_K": Recipe(208),
    "IQ1_S": Recipe(),
    "IQ2_XXS": Recipe(),
    "IQ2_XS": Recipe(),
    "IQ2_S": Recipe(),
    "IQ3_XXS": Recipe(),
    "IQ3_S": Recipe(),
    "IQ4_NL": Recipe(signed=True),
    "IQ4_XS": Recipe(),
    "Q1_0": Recipe(),
    "Q2_0": Recipe(signed=True),
    "PQ2_0": Recipe(signed=True),
    "TQ1_0": Recipe(52),
    "TQ2_0": Recipe(64, signed=True, adjust=_tq2_0),
}
_FLOATS = ("F32", "F16", "BF16")
TYPES = (*_FLOATS, *_RECIPES, "IQ1_M", "MXFP4", "NVFP4")  # every type that can be made


def random_bytes(count: int, generator: np.random.Generator) -> Bytes:
    """`count` uniform random bytes."""
    words = generator.integers(0, 1 << 64, size=-(-count // 8), dtype=np.uint64)
    return words.view(np.uint8)[:count]


def generator_for(seed: int, name: str, part: int = 0) -> np.random.Generator:
    """The source of randomness of one part of one tensor; parts may be made in any order."""
    return np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode()), part]))


def random_blocks(kind: BlockType, count: int, deviation: float, generator: np.random.Generator) -> Bytes:
    """uint8 [count, bytes of a block] whose decoded weights have mean zero and the given standard deviation."""
    if kind.name in _FLOATS:
        picks = random_bytes(2 * count, generator).view(np.uint16)
        return _normal_table(kind, deviation)[picks].view(np.uint8).reshape(count, kind.bytes)
    raw = random_bytes(count * kind.bytes, generator).reshape(count, kind.bytes)
    if kind.name in ("MXFP4", "NVFP4"):
        scales = kind.weights // 16 if kind.name == "NVFP4" else 1
        raw[:, :scales] = _byte_scales(kind, deviation)[raw[:, :scales]]
        return raw
    table = _half_table(kind.name, deviation)
    _set_scale(kind.name, raw, table[random_bytes(count, generator)])
    return raw


def _set_scale(name: str, blocks: Bytes, scales: NDArray[np.float16]) -> None:
    """Write the scales [n] (and the minimum that centres the codes) into random blocks [n, bytes]."""
    halves = scales.view(np.uint16)
    if name == "IQ1_M":  # the scale lies in the top nibbles of the last four 16-bit words, lowest first
        words = blocks[:, 48:56].view("<u2")
        words &= 0x0FFF
        words |= (halves[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        return
    recipe = _RECIPES[name]
    if recipe.adjust:
        recipe.adjust(blocks)
    blocks[:, recipe.scale : recipe.scale + 2] = halves.view(np.uint8).reshape(-1, 2)
    if recipe.minimum:
        at, ratio = recipe.minimum
        low = (scales.astype(np.float32) * np.float32(ratio)).astype(np.float16)
        blocks[:, at : at + 2] = low.view(np.uint8).reshape(-1, 2)


@lru_cache(maxsize=256)
def _half_table(name: str, deviation: float) -> NDArray[np.float16]:
    """256 scales to draw from: their mean square times that of the codes is deviation²."""
    factors = np.exp(np.linspace(-_SPREAD, _SPREAD, 256))
    factors /= np.sqrt(np.mean(factors**2))
    if name in _RECIPES and _RECIPES[name].signed:
        factors[::2] *= -1
    return (factors * (deviation / _unit_deviation(name))).astype(np.float16)


@lru_cache(maxsize=64)
def _unit_deviation(name: str) -> float:
    """Root mean square of random codes under a scale of one."""
    kind = block_type(name)
    generator = generator_for(0, name)
    sample = random_bytes((1 << 20) // kind.weights * kind.bytes, generator).reshape(-1, kind.bytes)
    _set_scale(name, sample, np.ones(len(sample), np.float16))
    return float(np.sqrt(np.mean(decode(kind, sample).astype(np.float64) ** 2)))


@lru_cache(maxsize=64)
def _byte_scales(kind: BlockType, deviation: float) -> Bytes:
    """256 scale bytes to draw from, for types whose scale is one byte: the two steps around the wanted scale, mixed
    so that the mean square is right."""
    steps = np.zeros((256, kind.bytes), np.uint8)
    scales = kind.weights // 16 if kind.name == "NVFP4" else 1
    steps[:, :scales] = np.arange(256)[:, None]
    steps[:, scales:] = 0x11  # the code of half a unit: one in the doubled table
    values = decode(kind, steps)[:, 0].astype(np.float64)
    codes = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float64)
    wanted = deviation / np.sqrt(np.mean(codes**2))
    usable = np.flatnonzero((values > 0) & np.isfinite(values))[:-1]
    if kind.name == "NVFP4":
        usable = usable[usable < 0x7F]
    usable = usable[np.argsort(values[usable])]
    above = int(np.clip(np.searchsorted(values[usable], wanted), 1, len(usable) - 1))
    low, high = usable[above - 1], usable[above]
    share = (wanted**2 - values[low] ** 2) / (values[high] ** 2 - values[low] ** 2)
    table: Bytes = np.where(np.arange(256) < 256 * np.clip(share, 0, 1), high, low).astype(np.uint8)
    return table


@lru_cache(maxsize=64)
def _normal_table(kind: BlockType, deviation: float) -> NDArray[np.generic]:
    """65,536 normal quantiles as numbers of the type: a weight is one 16-bit draw."""
    values = _normal_quantiles() * np.float32(deviation)
    if kind.name == "F32":
        return values
    if kind.name == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@lru_cache(maxsize=1)
def _normal_quantiles() -> NDArray[np.float32]:
    normal = NormalDist()
    half = np.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(32768)], np.float32)
    return np.concatenate([half, -half[::-1]])
