"""What the decoders share: array types and the unpacking of scales, nibbles, bits and 2-bit codes.

A decoder takes `blocks`, uint8 [n, bytes of a block], and fills `out`, float32 [n, weights of a block].
Codes are multiplied in float32 in ggml's order, so that the result is ggml's bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]

_PAIR = np.array([0, 4], np.uint8)[:, None]
_QUAD = np.array([0, 2, 4, 6], np.uint8)[:, None]
_OCTET = np.arange(8, dtype=np.uint8)[:, None]


def half(blocks: Blocks, at: int) -> Floats:
    """The IEEE half at byte `at` of every block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _planes(packed: Blocks, group: int, shifts: Blocks, mask: np.uint8) -> Blocks:
    """Per `group` bytes: all of them shifted by shifts[0] and masked, then by shifts[1], … [n, b] -> [n, shifts·b]."""
    n, size = packed.shape
    codes: Blocks = (packed.reshape(n, size // group, 1, group) >> shifts) & mask
    return codes.reshape(n, len(shifts) * size)


def nibbles(packed: Blocks, group: int) -> Blocks:
    """Per `group` bytes: all low nibbles, then all high ones. [n, b] -> [n, 2·b]."""
    return _planes(packed, group, _PAIR, np.uint8(15))


def pair_nibbles(packed: Blocks) -> Blocks:
    """Byte by byte, low nibble first. [n, b] -> [n, 2·b]."""
    return nibbles(packed, 1)


def twos(packed: Blocks, group: int) -> Blocks:
    """Per `group` bytes: bits 0-1 of all, then bits 2-3, 4-5, 6-7. [n, b] -> [n, 4·b]."""
    return _planes(packed, group, _QUAD, np.uint8(3))


def bits(packed: Blocks, group: int) -> Blocks:
    """Per `group` bytes: bit 0 of all, then bit 1, … bit 7. [n, b] -> [n, 8·b]."""
    return _planes(packed, group, _OCTET, np.uint8(1))


def scaled(out: Floats, scales: Floats, codes: NDArray[np.generic]) -> None:
    """out = scales[n, s] times codes[n, weights], each scale for an equal run of weights."""
    n, count = scales.shape
    np.multiply(scales[:, :, None], codes.reshape(n, count, -1), out=out.reshape(n, count, -1), dtype=np.float32)
