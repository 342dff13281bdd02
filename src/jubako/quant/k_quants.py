"""Super-blocks of 256 with quantised sub-scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K."""

from __future__ import annotations

import numpy as np

from .layout import Blocks, Floats, bits, half, nibbles, scaled, twos


def decode_q2_k(blocks: Blocks, out: Floats) -> None:
    scales = blocks[:, :16]
    scaled(out, half(blocks, 80) * (scales & 15), twos(blocks[:, 16:80], 32))
    _subtract_minima(out, half(blocks, 82) * (scales >> 4))


def decode_q3_k(blocks: Blocks, out: Floats) -> None:
    scales = nibbles(blocks[:, 96:104], 8) | (twos(blocks[:, 104:108], 4) << 4)
    codes = twos(blocks[:, 32:96], 32) | (bits(blocks[:, :32], 32) << 2)
    scaled(out, half(blocks, 108) * (scales.view(np.int8) - np.int8(32)), codes.view(np.int8) - np.int8(4))


def decode_q4_k(blocks: Blocks, out: Floats) -> None:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scaled(out, half(blocks, 0) * scales, nibbles(blocks[:, 16:], 32))
    _subtract_minima(out, half(blocks, 2) * minima)


def decode_q5_k(blocks: Blocks, out: Floats) -> None:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scaled(out, half(blocks, 0) * scales, nibbles(blocks[:, 48:], 32) | (bits(blocks[:, 16:48], 32) << 4))
    _subtract_minima(out, half(blocks, 2) * minima)


def decode_q6_k(blocks: Blocks, out: Floats) -> None:
    codes = nibbles(blocks[:, :128], 64) | (twos(blocks[:, 128:192], 32) << 4)
    scaled(out, half(blocks, 208) * blocks[:, 192:208].view(np.int8), codes.view(np.int8) - np.int8(32))


def _scales_and_minima(packed: Blocks) -> tuple[Blocks, Blocks]:
    """Eight 6-bit scales and minima from 12 bytes: bytes 0-3 and 4-7 hold the first four of each and
    the upper bits of the last four, whose low nibbles share bytes 8-11."""
    first, second, shared = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (shared & 15) | ((first >> 2) & 48)], 1)
    minima = np.concatenate([second & 63, (shared >> 4) | ((second >> 2) & 48)], 1)
    return scales, minima


def _subtract_minima(out: Floats, minima: Floats) -> None:
    runs = out.reshape(*minima.shape, -1)
    runs -= minima[:, :, None]
