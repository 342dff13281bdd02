"""decode and encode: raw blocks to float32 and back, any block type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import FileFormatError
from . import floats, fp4, iq4, iq_grid, k_quants, legacy, ternary
from .layout import Blocks, Floats
from .types import BlockType, block_type

if TYPE_CHECKING:
    import torch

_DECODERS: dict[str, Callable[[Blocks, Floats], None]] = {
    "F32": floats.decode_f32,
    "F16": floats.decode_f16,
    "BF16": floats.decode_bf16,
    "F64": floats.decode_f64,
    "I8": floats.decode_i8,
    "I16": floats.decode_i16,
    "I32": floats.decode_i32,
    "I64": floats.decode_i64,
    "Q4_0": legacy.decode_q4_0,
    "Q4_1": legacy.decode_q4_1,
    "Q5_0": legacy.decode_q5_0,
    "Q5_1": legacy.decode_q5_1,
    "Q8_0": legacy.decode_q8_0,
    "Q2_K": k_quants.decode_q2_k,
    "Q3_K": k_quants.decode_q3_k,
    "Q4_K": k_quants.decode_q4_k,
    "Q5_K": k_quants.decode_q5_k,
    "Q6_K": k_quants.decode_q6_k,
    "IQ1_S": iq_grid.decode_iq1_s,
    "IQ1_M": iq_grid.decode_iq1_m,
    "IQ2_XXS": iq_grid.decode_iq2_xxs,
    "IQ2_XS": iq_grid.decode_iq2_xs,
    "IQ2_S": iq_grid.decode_iq2_s,
    "IQ3_XXS": iq_grid.decode_iq3_xxs,
    "IQ3_S": iq_grid.decode_iq3_s,
    "IQ4_NL": iq4.decode_iq4_nl,
    "IQ4_XS": iq4.decode_iq4_xs,
    "MXFP4": fp4.decode_mxfp4,
    "NVFP4": fp4.decode_nvfp4,
    "Q1_0": ternary.decode_q1_0,
    "Q2_0": ternary.decode_q2_0,
    "PQ2_0": ternary.decode_q2_0,
    "TQ1_0": ternary.decode_tq1_0,
    "TQ2_0": ternary.decode_tq2_0,
}

_ENCODERS: dict[str, Callable[[Floats], Blocks]] = {
    "F32": floats.encode_f32,
    "F16": floats.encode_f16,
    "BF16": floats.encode_bf16,
    "Q4_0": legacy.encode_q4_0,
    "Q4_1": legacy.encode_q4_1,
    "Q5_0": legacy.encode_q5_0,
    "Q5_1": legacy.encode_q5_1,
    "Q8_0": legacy.encode_q8_0,
    "IQ4_NL": iq4.encode_iq4_nl,
    "MXFP4": fp4.encode_mxfp4,
    "NVFP4": fp4.encode_nvfp4,
    "Q2_0": ternary.encode_q2_0,
}

# Weights decoded at a time: the intermediate codes then stay in the second-level cache.
_CHUNK = 1 << 16

Raw = bytes | bytearray | memoryview | NDArray[np.uint8]


@overload
def decode(which: BlockType | int | str, data: Raw) -> Floats: ...
@overload
def decode(which: BlockType | int | str, data: torch.Tensor) -> torch.Tensor: ...
def decode(which: BlockType | int | str, data: Any) -> Any:
    """The floats of raw blocks: uint8 [..., n·bytes] -> float32 [..., n·weights].

    `which` is a BlockType, its name or its ggml id. A torch tensor gives a torch tensor on the same
    device, everything else a numpy array. FileFormatError for an unknown type or a partial block.
    """
    kind = block_type(which)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return torch.from_numpy(_decode(kind, data.cpu().numpy())).to(data.device)
    if isinstance(data, (bytes, bytearray, memoryview)):
        data = np.frombuffer(data if memoryview(data).c_contiguous else bytes(data), np.uint8)
    return _decode(kind, data)


def _decode(kind: BlockType, data: NDArray[np.uint8]) -> Floats:
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim == 0:
        got = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise FileFormatError(f"{kind.name} blocks are an array of bytes (uint8), got {got}")
    if data.shape[-1] % kind.bytes:
        raise FileFormatError(f"{data.shape[-1]} bytes are not made of whole {kind.name} blocks of {kind.bytes}")
    count = data.shape[-1] // kind.bytes
    blocks = np.ascontiguousarray(data).reshape(-1, kind.bytes) if count else np.empty((0, kind.bytes), np.uint8)
    out = np.empty((len(blocks), kind.weights), np.float32)
    decoder, step = _DECODERS[kind.name], max(1, _CHUNK // kind.weights)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            decoder(blocks[start : start + step], out[start : start + step])
    return out.reshape(*data.shape[:-1], count * kind.weights)


def encode(which: BlockType | int | str, values: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Quantise rows by plain rounding: float [..., n·weights] -> uint8 [..., n·bytes].

    For tests and synthetic files; the types without an encoder raise FileFormatError.
    """
    kind = block_type(which)
    encoder = _ENCODERS.get(kind.name)
    if encoder is None:
        raise FileFormatError(f"Jubako does not quantise to {kind.name}; it can to {', '.join(_ENCODERS)}")
    values = np.ascontiguousarray(values, np.float32)
    row = kind.row_bytes(values.shape[-1])
    blocks = values.reshape(-1, kind.weights)
    out = np.empty((len(blocks), kind.bytes), np.uint8)
    step = max(1, _CHUNK // kind.weights)
    for start in range(0, len(blocks), step):
        out[start : start + step] = encoder(blocks[start : start + step])
    return out.reshape(*values.shape[:-1], row)
