"""Four-bit codes into a table of 16 unevenly spaced values: IQ4_NL, IQ4_XS."""

from __future__ import annotations

import numpy as np

from .layout import Blocks, Floats, half, nibbles, pair_nibbles, scaled
from .legacy import extreme, half_bytes, inverse, pack_nibbles

VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_FLOATS = VALUES.astype(np.float32)
_BETWEEN = (_FLOATS[1:] + _FLOATS[:-1]) / 2


def decode_iq4_nl(blocks: Blocks, out: Floats) -> None:
    scaled(out, half(blocks, 0), _FLOATS[nibbles(blocks[:, 2:], 16)])


def decode_iq4_xs(blocks: Blocks, out: Floats) -> None:
    high = (blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & 3
    scales = (pair_nibbles(blocks[:, 4:8]) | (high << 4)).view(np.int8) - np.int8(32)
    scaled(out, half(blocks, 0) * scales, _FLOATS[nibbles(blocks[:, 8:], 16)])


def encode_iq4_nl(values: Floats) -> Blocks:
    """The extreme value sits on −127, the rest on the nearest table entry."""
    d = extreme(values) / np.float32(-127)
    return np.concatenate([half_bytes(d), pack_nibbles(np.searchsorted(_BETWEEN, values * inverse(d)))], 1)
