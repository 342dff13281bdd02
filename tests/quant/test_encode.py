"""Quantising: what comes back after decoding, and agreement with ggml where both round alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jubako.errors import FileFormatError
from jubako.quant import decode, encode

BLOCKS = np.load(Path(__file__).parents[1] / "data" / "quant_blocks.npz")

# Relative RMS error of a Gaussian after a round trip: the values of ggml's own quantisers, with a little room.
ROUND_TRIP = {
    "Q8_0": 0.0056,
    "Q5_1": 0.04,
    "Q5_0": 0.044,
    "Q4_1": 0.082,
    "Q4_0": 0.092,
    "IQ4_NL": 0.1,
    "MXFP4": 0.13,
    "NVFP4": 0.1,
}


@pytest.mark.parametrize("name", sorted(ROUND_TRIP))
def test_round_trip_error(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 2560), np.float32)
    error = decode(name, encode(name, values)) - values
    assert np.sqrt((error**2).mean() / (values**2).mean()) < ROUND_TRIP[name]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_equals_gguf_py(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = BLOCKS[f"{name}.source"]
    assert np.array_equal(encode(name, values), gguf.quantize(values, gguf.GGMLQuantizationType[name]))


@pytest.mark.parametrize("name", [*ROUND_TRIP, "Q2_0"])
def test_decoded_blocks_survive_requantising_nearly(name: str) -> None:
    """Zero blocks stay zero, and a representable block comes back."""
    assert not decode(name, encode(name, np.zeros((2, 640), np.float32))).any()
    first = decode(name, encode(name, np.random.default_rng(1).standard_normal((4, 640), np.float32)))
    again = decode(name, encode(name, first))
    assert np.abs(again - first).max() <= 0.26 * np.abs(first).max()


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    values = np.float32([1.0, 1.00390625, 1.01171875, -2.5, np.nan, np.inf, 3.4e38])
    assert encode("BF16", values).view(np.uint16).tolist()[:4] == [0x3F80, 0x3F80, 0x3F82, 0xC020]
    back = decode("BF16", encode("BF16", values))
    assert np.isnan(back[4]) and back[5] == np.inf


def test_plain_types_are_exact() -> None:
    values = np.float32([[1.5, -0.25, 65504, 0]])
    for name in ("F32", "F16"):
        assert np.array_equal(decode(name, encode(name, values)), values)


def test_refusals() -> None:
    with pytest.raises(FileFormatError, match="does not quantise to IQ3_S"):
        encode("IQ3_S", np.zeros(256, np.float32))
    with pytest.raises(FileFormatError, match="33 is not made of whole Q8_0 blocks of 32"):
        encode("Q8_0", np.zeros(33, np.float32))
