"""Plain numbers as block types of one weight: F32, F16, BF16, F64 and integers."""

from __future__ import annotations

import numpy as np

from .layout import Blocks, Floats


def decode_f32(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<f4")


def decode_f16(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<f2")


def decode_bf16(blocks: Blocks, out: Floats) -> None:
    """BF16 is the upper half of a float32."""
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def decode_f64(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<f8")


def decode_i8(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("i1")


def decode_i16(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<i2")


def decode_i32(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<i4")


def decode_i64(blocks: Blocks, out: Floats) -> None:
    out[:] = blocks.view("<i8")


def encode_f32(values: Floats) -> Blocks:
    return np.ascontiguousarray(values, "<f4").view(np.uint8)


def encode_f16(values: Floats) -> Blocks:
    return values.astype("<f2").view(np.uint8)


def encode_bf16(values: Floats) -> Blocks:
    """Round to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2").view(np.uint8)
