"""Four-bit floats (E2M1) under power-of-two or 8-bit float scales: MXFP4, NVFP4."""

from __future__ import annotations

import numpy as np

from .layout import Blocks, Floats, nibbles, scaled
from .legacy import pack_nibbles

# E2M1 doubled, so that the table is integer; the scales below are halved.
VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_FLOATS = VALUES.astype(np.float32)
_MAGNITUDE_STEPS = (_FLOATS[1:8] + _FLOATS[:7]) / 2


def _e8m0_halved() -> Floats:
    """2^(e−128) for every byte e; 0 and 1 give float32 subnormals."""
    return np.ldexp(np.float32(1), np.arange(256, dtype=np.int32) - 128).astype(np.float32)


def _ue4m3_halved() -> Floats:
    """Half of an unsigned E4M3 (bias 7, subnormals m·2⁻⁹) for every byte. Bit 7 is ignored; 0x7F, the NaN,
    reads as 0 and 0xFF as 480, as ggml does."""
    code = np.arange(256, dtype=np.int32) & 127
    exponent, mantissa = code >> 3, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 1.0, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[0x7F], value[0xFF] = 0, 480
    return (value / 2).astype(np.float32)


E8M0_HALVED = _e8m0_halved()
UE4M3_HALVED = _ue4m3_halved()


def decode_mxfp4(blocks: Blocks, out: Floats) -> None:
    scaled(out, E8M0_HALVED[blocks[:, :1]], _FLOATS[nibbles(blocks[:, 1:], 16)])


def decode_nvfp4(blocks: Blocks, out: Floats) -> None:
    scaled(out, UE4M3_HALVED[blocks[:, :4]], _FLOATS[nibbles(blocks[:, 4:], 8)])


def _codes(x: Floats) -> Blocks:
    """Nearest table index of values already divided by their (halved) scale."""
    return (np.searchsorted(_MAGNITUDE_STEPS, np.abs(x)) | np.where(x < 0, 8, 0)).astype(np.uint8)


def encode_mxfp4(values: Floats) -> Blocks:
    """Scale exponent from the largest magnitude (OCP Microscaling 1.0), codes to the nearest."""
    top = np.abs(values).max(1, keepdims=True)
    exponent = np.clip(np.frexp(top)[1] - 3 + 127, 0, 254)
    exponent[top == 0] = 0
    return np.concatenate([exponent.astype(np.uint8), pack_nibbles(_codes(values / E8M0_HALVED[exponent]))], 1)


def encode_nvfp4(values: Floats) -> Blocks:
    """Per 16 weights the E4M3 scale nearest to largest magnitude / 6, codes to the nearest."""
    n = len(values)
    groups = values.reshape(n, 4, 16)
    scales = UE4M3_HALVED[:0x7F]
    between = (scales[1:] + scales[:-1]) / 2
    chosen = np.searchsorted(between, np.abs(groups).max(2) / 12)
    scale = scales[chosen][:, :, None]
    codes = _codes(np.divide(groups, scale, out=np.zeros_like(groups), where=scale != 0))
    packed = codes[:, :, :8] | (codes[:, :, 8:] << 4)
    return np.concatenate([chosen.astype(np.uint8), packed.reshape(n, 32)], 1)
