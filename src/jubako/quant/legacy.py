"""Blocks of 32 with one half-precision scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import Blocks, Floats, bits, half, nibbles, scaled


def decode_q4_0(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 0), nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8))


def decode_q4_1(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 0), nibbles(blocks[:, 4:], 16))
    out += half(blocks, 2)


def decode_q5_0(blocks: Blocks, out: Floats) -> None:
    codes = nibbles(blocks[:, 6:], 16) | (bits(blocks[:, 2:6], 1) << 4)
    scaled(out, half(blocks, 0), codes.view(np.int8) - np.int8(16))


def decode_q5_1(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 0), nibbles(blocks[:, 8:], 16) | (bits(blocks[:, 4:8], 1) << 4))
    out += half(blocks, 2)


def decode_q8_0(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 0), blocks[:, 2:].view(np.int8))


def half_bytes(values: Floats) -> Blocks:
    """float32 [n, 1] -> uint8 [n, 2], rounded to IEEE half."""
    with np.errstate(over="ignore"):
        return values.astype("<f2").view(np.uint8)


def inverse(scale: Floats) -> Floats:
    """1/scale, and 0 where the scale is 0."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def extreme(values: Floats) -> Floats:
    """The value of largest magnitude of each block, with its sign. [n, w] -> [n, 1]."""
    return np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)


def pack_nibbles(codes: NDArray[np.integer[Any]]) -> Blocks:
    """[n, 32] codes 0…15 -> [n, 16]: weight j in the low half of byte j, j+16 in the high half."""
    small: Blocks = codes.astype(np.uint8)
    return small[:, :16] | (small[:, 16:] << np.uint8(4))


def _symmetric(values: Floats, levels: int) -> tuple[Floats, Blocks]:
    """Scale and codes 0…levels−1 such that the extreme value sits on code 0."""
    d = extreme(values) / np.float32(-levels / 2)
    codes = np.clip(np.floor(values * inverse(d) + np.float32(levels / 2 + 0.5)), 0, levels - 1)
    return d, codes.astype(np.uint8)


def _affine(values: Floats, levels: int) -> tuple[Floats, Floats, Blocks]:
    """Scale, minimum and codes 0…levels−1 that span the block's range."""
    low = values.min(1, keepdims=True)
    d = (values.max(1, keepdims=True) - low) / np.float32(levels - 1)
    return d, low, np.clip(np.floor((values - low) * inverse(d) + np.float32(0.5)), 0, levels - 1).astype(np.uint8)


def _fifth_bits(codes: Blocks) -> Blocks:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def encode_q4_0(values: Floats) -> Blocks:
    d, codes = _symmetric(values, 16)
    return np.concatenate([half_bytes(d), pack_nibbles(codes)], 1)


def encode_q4_1(values: Floats) -> Blocks:
    d, low, codes = _affine(values, 16)
    return np.concatenate([half_bytes(d), half_bytes(low), pack_nibbles(codes)], 1)


def encode_q5_0(values: Floats) -> Blocks:
    d, codes = _symmetric(values, 32)
    return np.concatenate([half_bytes(d), _fifth_bits(codes), pack_nibbles(codes & 15)], 1)


def encode_q5_1(values: Floats) -> Blocks:
    d, low, codes = _affine(values, 32)
    return np.concatenate([half_bytes(d), half_bytes(low), _fifth_bits(codes), pack_nibbles(codes & 15)], 1)


def encode_q8_0(values: Floats) -> Blocks:
    """Ties round away from zero, as in ggml."""
    d = np.abs(values).max(1, keepdims=True) / np.float32(127)
    x = values * inverse(d)
    codes = np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x).astype(np.int8)
    return np.concatenate([half_bytes(d), codes.view(np.uint8)], 1)
