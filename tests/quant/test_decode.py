"""Every block type against what ggml itself decodes (tests/data/quant_blocks.npz), bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from jubako.errors import FileFormatError
from jubako.quant import BY_ID, BY_NAME, block_type, decode

BLOCKS = np.load(Path(__file__).parents[1] / "data" / "quant_blocks.npz")
GOLDEN = sorted({key.split(".")[0] for key in BLOCKS.files})


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal bit for bit, except that any NaN equals any NaN."""
    if got.shape != want.shape:
        return False
    same = got.view(np.uint32) == want.view(np.uint32)
    return bool((same | (np.isnan(want) & np.isnan(got))).all())


def test_all_22_types_are_there() -> None:
    assert len(GOLDEN) == 22


@pytest.mark.parametrize("name", GOLDEN)
def test_size_and_id(name: str) -> None:
    kind = BY_NAME[name]
    assert kind.id == BLOCKS[f"{name}.id"]
    assert (kind.weights, kind.bytes) == (BLOCKS[f"{name}.weights_per_block"], BLOCKS[f"{name}.bytes_per_block"])
    assert BY_ID[kind.id] is kind


@pytest.mark.parametrize("name", GOLDEN)
def test_decodes_as_ggml(name: str) -> None:
    assert same_bits(decode(name, BLOCKS[f"{name}.quantized"]), BLOCKS[f"{name}.decoded"])
    assert same_bits(decode(BY_NAME[name].id, BLOCKS[f"{name}.random_blocks"]), BLOCKS[f"{name}.random_decoded"])


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_chunks_and_shapes_do_not_matter(name: str) -> None:
    """More than one chunk, from a strided view, gives the same as row by row."""
    kind = BY_NAME[name]
    rows, columns = 5, 2**15 // kind.weights * kind.bytes
    raw = np.random.default_rng(1).integers(0, 256, (rows, 2, columns), np.uint8)[:, 1]
    whole = decode(name, raw)
    assert whole.shape == (rows, 2**15) and whole.dtype == np.float32
    for i in range(rows):
        assert same_bits(whole[i], decode(name, raw[i].tobytes()))


def test_q1_0() -> None:
    block = np.concatenate([np.float16([0.5]).view(np.uint8), np.full(16, 0b00000101, np.uint8)])
    values = np.float32([0.5, -0.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5])
    assert np.array_equal(decode("Q1_0", block), np.tile(values, 16))


def test_pq2_0_is_q2_0_with_longer_blocks() -> None:
    block = np.concatenate([np.float16([2.0]).view(np.uint8), np.full(32, 0b11_10_01_00, np.uint8)])
    assert np.array_equal(decode("PQ2_0", block), np.tile(np.float32([-2, 0, 2, 4]), 32))


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_ternary_as_gguf_py(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(2).integers(-1, 2, (8, 512)).astype(np.float32) * np.float32(0.75)
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    assert np.array_equal(decode(name, raw), values)
    noise = np.random.default_rng(3).integers(0, 256, (64, BY_NAME[name].bytes), np.uint8)
    assert same_bits(decode(name, noise), gguf.dequantize(noise, gguf.GGMLQuantizationType[name]))


def test_plain_numbers() -> None:
    values = np.float32([0.0, -0.0, 1.5, -3.0, 65504.0, np.inf])
    assert same_bits(decode("F32", values.tobytes()), values)
    assert same_bits(decode("F16", values.astype(np.float16).tobytes()), values)
    assert same_bits(decode("BF16", np.uint16([0x3FC0, 0xC040, 0x7F80]).tobytes()), np.float32([1.5, -3.0, np.inf]))
    assert same_bits(decode("F64", np.float64([0.1]).tobytes()), np.float32([0.1]))
    assert same_bits(decode("I64", np.int64([-7, 2**40]).tobytes()), np.float32([-7, 2**40]))


def test_torch_in_torch_out() -> None:
    raw = torch.from_numpy(BLOCKS["Q4_K.quantized"])
    got = decode("Q4_K", raw)
    assert isinstance(got, torch.Tensor) and torch.equal(got, torch.from_numpy(BLOCKS["Q4_K.decoded"]))
    assert isinstance(decode("Q4_K", bytearray(144)), np.ndarray)


def test_nothing_decodes_to_nothing() -> None:
    assert decode("Q6_K", b"").shape == (0,)
    assert decode("Q6_K", np.empty((3, 0), np.uint8)).shape == (3, 0)
    assert decode("Q6_K", np.empty((0, 210), np.uint8)).shape == (0, 256)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(FileFormatError, match="35 bytes are not made of whole Q8_0 blocks of 34"):
        decode("Q8_0", bytes(35))
    with pytest.raises(FileFormatError, match="'Q9_X' is not known"):
        decode("Q9_X", b"")
    with pytest.raises(FileFormatError, match="66 is not known"):
        block_type(66)
    with pytest.raises(FileFormatError, match="got float32"):
        decode("Q8_0", np.zeros(34, np.float32))  # type: ignore[arg-type]


def test_strided_blocks_decode_like_their_copies() -> None:
    blocks = np.random.default_rng(0).integers(0, 120, (3, 36), dtype=np.uint8)
    expected = decode("Q4_0", np.ascontiguousarray(blocks[:, ::2]))
    assert np.array_equal(decode("Q4_0", blocks[:, ::2]), expected, equal_nan=True)
    assert np.array_equal(decode("Q4_0", memoryview(blocks[0].tobytes())[::2]), expected[0], equal_nan=True)


def test_what_is_no_array_of_bytes_is_refused() -> None:
    with pytest.raises(FileFormatError, match="an array of bytes"):
        decode("Q4_0", [1, 2, 3])
