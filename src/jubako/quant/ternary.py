"""One- and two-bit codes under one scale: Q1_0, Q2_0 (and PrismML's PQ2_0), TQ1_0, TQ2_0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .layout import Blocks, Floats, bits, half, scaled, twos
from .legacy import extreme, half_bytes, inverse

_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def decode_q1_0(blocks: Blocks, out: Floats) -> None:
    """Bit 1 is +d, bit 0 is −d."""
    scaled(out, half(blocks, 0), 2 * bits(blocks[:, 2:], 1).view(np.int8) - np.int8(1))


def decode_q2_0(blocks: Blocks, out: Floats) -> None:
    """Codes 0…3 are −d, 0, d, 2d. Any block length."""
    scaled(out, half(blocks, 0), twos(blocks[:, 2:], 1).view(np.int8) - np.int8(1))


def decode_tq1_0(blocks: Blocks, out: Floats) -> None:
    """Five base-3 digits a byte (four in the last four bytes), first digit highest."""
    digits = [_digits(blocks[:, :32], 5), _digits(blocks[:, 32:48], 5), _digits(blocks[:, 48:52], 4)]
    scaled(out, half(blocks, 52), np.concatenate(digits, 1) - np.int8(1))


def decode_tq2_0(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 64), twos(blocks[:, :64], 32).view(np.int8) - np.int8(1))


def _digits(packed: Blocks, count: int) -> NDArray[np.int8]:
    """Multiplying a byte by 3^k (mod 256) moves digit k to the top, where ·3 >> 8 reads it."""
    shifted = packed[:, None, :] * _POWERS_OF_3[:count]
    return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.int8).reshape(len(packed), -1)


def encode_q2_0(values: Floats) -> Blocks:
    """d such that the extreme value is −d or 2d; codes to the nearest."""
    d = np.abs(extreme(values))
    codes = np.clip(np.floor(values * inverse(d) + np.float32(1.5)), 0, 3).astype(np.uint8)
    quads = codes.reshape(len(values), -1, 4)
    return np.concatenate([half_bytes(d), (quads << np.array([0, 2, 4, 6], np.uint8)).sum(2, dtype=np.uint8)], 1)
