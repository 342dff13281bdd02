"""Codes that index a codebook of 8 (or 4) weights: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import codebooks
from .layout import Blocks, Floats, bits, half, pair_nibbles, scaled, twos

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_SIGNS = np.float32(1) - np.float32(2) * _BITS  # [256, 8]: bit j set is minus for weight j
_EVEN_SIGNS = _SIGNS[codebooks.SIGNS]  # [128, 8]: seven bits given, the eighth makes the number of minus signs even
_IQ1_DELTA = np.float32(0.125)


def _signed(codes: Floats, signs: Floats) -> Floats:
    """Codebook rows times signs [n, 32, 8], flattened to [n, 256]."""
    n = len(signs)
    codes = codes.reshape(n, 256)
    codes *= signs.reshape(n, 256)
    return codes


def _even_signs(words: NDArray[np.uint32]) -> Floats:
    """Four 7-bit sign indices, low first, of every 32-bit word. [n, 8] -> [n, 8, 4, 8]."""
    index = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    signs: Floats = _EVEN_SIGNS[index]
    return signs


def _fine(blocks: Blocks, scale: NDArray[np.generic], unit: float) -> Floats:
    return half(blocks, 0) * (scale.astype(np.float32) + np.float32(0.5)) * np.float32(unit)


def decode_iq2_xxs(blocks: Blocks, out: Floats) -> None:
    index = blocks[:, 2:].reshape(-1, 8, 8)
    words = np.ascontiguousarray(index[:, :, 4:]).view("<u4")[:, :, 0]
    codes = codebooks.IQ2_XXS[index[:, :, :4]]
    scaled(out, _fine(blocks, words >> 28, 0.25), _signed(codes, _even_signs(words)))


def decode_iq2_xs(blocks: Blocks, out: Floats) -> None:
    words = blocks[:, 2:66].view("<u2")
    codes = codebooks.IQ2_XS[words & 511]
    scaled(out, _fine(blocks, pair_nibbles(blocks[:, 66:74]), 0.25), _signed(codes, _EVEN_SIGNS[words >> 9]))


def decode_iq2_s(blocks: Blocks, out: Floats) -> None:
    index = blocks[:, 2:34].astype(np.uint16) | (twos(blocks[:, 66:74], 1).astype(np.uint16) << 8)
    codes = codebooks.IQ2_S[index]
    scaled(out, _fine(blocks, pair_nibbles(blocks[:, 74:82]), 0.25), _signed(codes, _SIGNS[blocks[:, 34:66]]))


def decode_iq3_xxs(blocks: Blocks, out: Floats) -> None:
    words = blocks[:, 66:].view("<u4")
    codes = codebooks.IQ3_XXS[blocks[:, 2:66]]
    scaled(out, _fine(blocks, words >> 28, 0.5), _signed(codes, _even_signs(words)))


def decode_iq3_s(blocks: Blocks, out: Floats) -> None:
    index = blocks[:, 2:66].astype(np.uint16) | (bits(blocks[:, 66:74], 1).astype(np.uint16) << 8)
    codes = codebooks.IQ3_S[index]
    scale = half(blocks, 0) * (1 + 2 * pair_nibbles(blocks[:, 106:110]))
    scaled(out, scale, _signed(codes, _SIGNS[blocks[:, 74:106]]))


def decode_iq1_s(blocks: Blocks, out: Floats) -> None:
    words = blocks[:, 34:].view("<u2")
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    index = blocks[:, 2:34] | (high.reshape(-1, 32) << 8)
    codes = codebooks.IQ1_S[index].reshape(-1, 8, 32)
    codes += np.where(words & 0x8000, -_IQ1_DELTA, _IQ1_DELTA)[:, :, None]
    scaled(out, half(blocks, 0) * (2 * ((words >> 12) & 7) + 1), codes)


def decode_iq1_m(blocks: Blocks, out: Floats) -> None:
    """The half scale lies in the top nibbles of the four scale words, lowest nibble first."""
    high = pair_nibbles(blocks[:, 32:48])
    words = blocks[:, 48:].view("<u2")
    d = ((words >> 12) << np.array([0, 4, 8, 12], np.uint16)).sum(1, dtype=np.uint16).view("<f2").astype(np.float32)
    scale = ((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7).reshape(-1, 16)
    codes = codebooks.IQ1_S[blocks[:, :32] | ((high & 7).astype(np.uint16) << 8)]
    codes += np.where(high & 8, -_IQ1_DELTA, _IQ1_DELTA)[:, :, None]
    scaled(out, d[:, None] * (2 * scale + 1), codes)
