"""Raw blocks to codes and scales, with torch on any device: what planar.py packs again.

An unpacker takes blocks uint8 [n, bytes] and gives codes uint8 [n, weights] in the order of the weights, sub-scales
[n, …] or None and scales [n, …] or None as bytes. Formats: quant/*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from ...quant import codebooks

Bytes = torch.Tensor
Parts = tuple[Bytes, Bytes | None, Bytes | None]


def nibbles(packed: Bytes, group: int) -> Bytes:
    """Per `group` bytes: all low nibbles, then all high ones. [n, b] -> [n, 2·b]."""
    runs = packed.reshape(len(packed), -1, 1, group)
    return torch.cat([runs & 15, runs >> 4], 2).reshape(len(packed), -1)


def twos(packed: Bytes, group: int) -> Bytes:
    """Per `group` bytes: bits 0-1 of all, then bits 2-3, 4-5, 6-7. [n, b] -> [n, 4·b]."""
    runs = packed.reshape(len(packed), -1, 1, group)
    return torch.cat([runs & 3, runs >> 2 & 3, runs >> 4 & 3, runs >> 6], 2).reshape(len(packed), -1)


def bits(packed: Bytes, group: int) -> Bytes:
    """Per `group` bytes: bit 0 of all, then bit 1, … bit 7. [n, b] -> [n, 8·b]."""
    runs = packed.reshape(len(packed), -1, 1, group)
    return torch.cat([runs >> k & 1 for k in range(8)], 2).reshape(len(packed), -1)


def halves_of(words: torch.Tensor) -> Bytes:
    """int32 [n, k] below 2^16 to bytes [n, 2·k], low first."""
    return torch.stack([words & 255, words >> 8 & 255], -1).to(torch.uint8).reshape(len(words), -1)


def _words16(packed: Bytes) -> torch.Tensor:
    """Little-endian 16-bit words as int32."""
    pairs = packed.reshape(len(packed), -1, 2).int()
    return pairs[..., 0] | pairs[..., 1] << 8


def _words32(packed: Bytes) -> torch.Tensor:
    """Little-endian 32-bit words as int64."""
    quads = packed.reshape(len(packed), -1, 4).long()
    return quads[..., 0] | quads[..., 1] << 8 | quads[..., 2] << 16 | quads[..., 3] << 24


def _q4_0(b: Bytes) -> Parts:
    return nibbles(b[:, 2:], 16), None, b[:, :2]


def _q4_1(b: Bytes) -> Parts:
    return nibbles(b[:, 4:], 16), None, b[:, :4]


def _q5_0(b: Bytes) -> Parts:
    return nibbles(b[:, 6:], 16) | bits(b[:, 2:6], 1) << 4, None, b[:, :2]


def _q5_1(b: Bytes) -> Parts:
    return nibbles(b[:, 8:], 16) | bits(b[:, 4:8], 1) << 4, None, b[:, :4]


def _q8_0(b: Bytes) -> Parts:
    return b[:, 2:], None, b[:, :2]


def _q2_k(b: Bytes) -> Parts:
    return twos(b[:, 16:80], 32), b[:, :16], b[:, 80:84]


def _q3_k(b: Bytes) -> Parts:
    scales = (nibbles(b[:, 96:104], 8) | twos(b[:, 104:108], 4) << 4) - 32  # wraps: signed bytes
    return twos(b[:, 32:96], 32) | bits(b[:, :32], 32) << 2, scales, b[:, 108:110]


def _k_scales(packed: Bytes) -> Bytes:
    """Scale and minimum of each of the eight blocks, side by side."""
    first, second, shared = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (shared & 15) | ((first >> 2) & 48)], 1)
    minima = torch.cat([second & 63, (shared >> 4) | ((second >> 2) & 48)], 1)
    return torch.stack([scales, minima], 2).reshape(len(packed), 16)


def _q4_k(b: Bytes) -> Parts:
    return nibbles(b[:, 16:], 32), _k_scales(b[:, 4:16]), b[:, :4]


def _q5_k(b: Bytes) -> Parts:
    return nibbles(b[:, 48:], 32) | bits(b[:, 16:48], 32) << 4, _k_scales(b[:, 4:16]), b[:, :4]


def _q6_k(b: Bytes) -> Parts:
    return nibbles(b[:, :128], 64) | twos(b[:, 128:192], 32) << 4, b[:, 192:208], b[:, 208:]


def _iq4_xs(b: Bytes) -> Parts:
    high = torch.stack([b[:, 2 + k // 4] >> 2 * (k % 4) & 3 for k in range(8)], 1)
    return nibbles(b[:, 8:], 16), (nibbles(b[:, 4:8], 1) | high << 4) - 32, b[:, :2]


def _mxfp4(b: Bytes) -> Parts:
    return nibbles(b[:, 1:], 16), None, b[:, :1]


def _nvfp4(b: Bytes) -> Parts:
    return nibbles(b[:, 4:], 8), b[:, :4], None


def _q1_0(b: Bytes) -> Parts:
    return bits(b[:, 2:], 1), None, b[:, :2]


def _q2_0(b: Bytes) -> Parts:
    return twos(b[:, 2:], 1), None, b[:, :2]


def _tq2_0(b: Bytes) -> Parts:
    return twos(b[:, :64], 32), None, b[:, 64:]


def _tq1_0(b: Bytes) -> Parts:
    def digits(packed: Bytes, count: int) -> Bytes:
        powers = torch.tensor([1, 3, 9, 27, 81][:count], dtype=torch.int32, device=b.device)[:, None]
        shifted = packed[:, None].int() * powers & 255
        return (shifted * 3 >> 8).to(torch.uint8).reshape(len(b), -1)

    return torch.cat([digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)], 1), None, b[:, 52:]


@lru_cache(maxsize=32)
def _grid(name: str, device: torch.device) -> torch.Tensor:
    """A codebook as numbers of its magnitudes, smallest 0, uint8 [entries, width]."""
    grid = getattr(codebooks, name)
    return torch.from_numpy(np.searchsorted(np.unique(grid), grid).astype(np.uint8)).to(device)


@lru_cache(maxsize=8)
def _even_signs(device: torch.device) -> torch.Tensor:
    """Sign bits [128, 8] of a seven-bit index."""
    return bits(torch.from_numpy(codebooks.SIGNS.copy())[:, None], 1).to(device)


def _signs_of_words(words: torch.Tensor) -> Bytes:
    """Four 7-bit sign indices, low first, of 32-bit words [n, 8]: sign bits [n, 256]."""
    index = torch.stack([words >> 7 * k & 127 for k in range(4)], 2)
    return _even_signs(words.device)[index].reshape(len(words), 256)


def _odd(scales: torch.Tensor) -> Bytes:
    return (2 * scales + 1).to(torch.uint8)


def _iq2_xxs(b: Bytes) -> Parts:
    runs = b[:, 2:].reshape(-1, 8, 8)
    words = _words32(runs[:, :, 4:].reshape(len(b), -1))
    codes = _grid("IQ2_XXS", b.device)[runs[:, :, :4].int()].reshape(len(b), 256)
    return codes | _signs_of_words(words) << 2, _odd(words >> 28), b[:, :2]


def _iq2_xs(b: Bytes) -> Parts:
    words = _words16(b[:, 2:66])
    codes = _grid("IQ2_XS", b.device)[words & 511].reshape(len(b), 256)
    signs = _even_signs(b.device)[words >> 9].reshape(len(b), 256)
    return codes | signs << 2, _odd(nibbles(b[:, 66:74], 1)), b[:, :2]


def _iq2_s(b: Bytes) -> Parts:
    index = b[:, 2:34].int() | twos(b[:, 66:74], 1).int() << 8
    codes = _grid("IQ2_S", b.device)[index].reshape(len(b), 256)
    return codes | bits(b[:, 34:66], 1) << 2, _odd(nibbles(b[:, 74:82], 1)), b[:, :2]


def _iq3_xxs(b: Bytes) -> Parts:
    words = _words32(b[:, 66:])
    codes = _grid("IQ3_XXS", b.device)[b[:, 2:66].int()].reshape(len(b), 256)
    return codes | _signs_of_words(words) << 3, _odd(words >> 28), b[:, :2]


def _iq3_s(b: Bytes) -> Parts:
    index = b[:, 2:66].int() | bits(b[:, 66:74], 1).int() << 8
    codes = _grid("IQ3_S", b.device)[index].reshape(len(b), 256)
    return codes | bits(b[:, 74:106], 1) << 3, _odd(nibbles(b[:, 106:110], 1)), b[:, :2]


def _iq1_s(b: Bytes) -> Parts:
    """Sub-scales as for IQ1_M: the block's scale twice, its delta's sign four times."""
    words = _words16(b[:, 34:])
    high = torch.stack([words >> 3 * k & 7 for k in range(4)], 2).reshape(len(b), 32)
    codes = _grid("IQ1_S", b.device)[b[:, 2:34].int() | high << 8].reshape(len(b), 256)
    scale, minus = words >> 12 & 7, words >> 15
    return codes, halves_of(scale | scale << 3 | minus * 15 << 6), b[:, :2]


def _iq1_m(b: Bytes) -> Parts:
    """Sub-scales, 16 bits a block: two of three bits, then the signs of the deltas of its four groups of eight."""
    high, words = nibbles(b[:, 32:48], 1).int(), _words16(b[:, 48:])
    codes = _grid("IQ1_S", b.device)[b[:, :32].int() | (high & 7) << 8].reshape(len(b), 256)
    d = words[:, 0] >> 12 | words[:, 1] >> 12 << 4 | words[:, 2] >> 12 << 8 | words[:, 3] >> 12 << 12
    scales = torch.stack([words & 63, words >> 6 & 63], 2).reshape(len(b), 8)
    minus = (high >> 3).reshape(-1, 8, 4)
    groups = minus[..., 0] | minus[..., 1] << 1 | minus[..., 2] << 2 | minus[..., 3] << 3
    return codes, halves_of(scales | groups << 6), halves_of(d[:, None])


UNPACKERS: dict[str, Callable[[Bytes], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "PQ2_0": _q2_0,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
