"""Reading and writing GGUF: real values from the tiny model, every value type, sizes that decide a type."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_gguf import gguf, tensor

from jubako.errors import FileFormatError
from jubako.files import GgufWriter, read_gguf
from jubako.quant import encode

TINY = Path(__file__).parents[1] / "data" / "tiny"


def test_tiny_metadata() -> None:
    file = read_gguf(TINY / "tiny-bf16.gguf")
    meta = file.metadata
    assert file.version == 3 and file.alignment == 32 and file.size == 10405056
    assert meta["general.architecture"] == "qwen4exp"
    assert meta["qwen4exp.block_count"] == 4 and meta["qwen4exp.rope.freq_base"] == 1e7
    assert isinstance(meta["qwen4exp.block_count"], int)
    multipliers = meta["qwen4exp.ple.layer_multipliers"]
    assert isinstance(multipliers, np.ndarray) and multipliers.dtype == np.uint64
    assert multipliers.tolist() == [4295158889766209, 8433018892997163, 1270917961435699]
    assert np.array_equal(meta["qwen4exp.attention.recurrent_layers"], [True, True, True, False])
    tokens = meta["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and len(tokens) == 1024 and all(isinstance(token, str) for token in tokens)


def test_tiny_tensors() -> None:
    tensors = read_gguf(TINY / "tiny-mixed.gguf").tensors
    assert len(tensors) == 113
    experts = tensors["blk.0.ffn_gate_exps.weight"]
    assert experts.type.name == "IQ3_S" and experts.shape == (12, 64, 256) and experts.data.shape == (12, 64, 110)
    assert not experts.data.flags.writeable and experts.nbytes == 12 * 64 * 110
    assert tensors["blk.3.ffn_down_exps.weight"].type.name == "Q2_0"
    assert tensors["blk.0.ssm_a"].shape == (6,) and tensors["blk.0.ssm_a"].data.shape == (24,)
    raw = (TINY / "tiny-mixed.gguf").read_bytes()
    assert raw[experts.offset : experts.offset + experts.nbytes] == experts.data.tobytes()


def test_quantised_tensors_stand_for_the_same_network() -> None:
    """The mixed file's weights lie near the BF16 file's: right type, right place, right order."""
    exact, mixed = read_gguf(TINY / "tiny-bf16.gguf").tensors, read_gguf(TINY / "tiny-mixed.gguf").tensors
    assert exact.keys() == mixed.keys()
    limit = {"F32": 0, "F16": 1e-3, "BF16": 0, "Q8_0": 0.01, "Q6_K": 0.03, "Q5_K": 0.05, "Q5_1": 0.05, "Q4_K": 0.1}
    for name, tensor_ in mixed.items():
        want = exact[name].float32()
        error = torch.linalg.norm(tensor_.float32() - want) / torch.linalg.norm(want)
        assert error <= limit.get(tensor_.type.name, 0.8 if tensor_.type.name == "Q2_0" else 0.2), name


def test_integers_only_from_integers() -> None:
    with pytest.raises(FileFormatError, match=r"token_embd.weight is BF16; integers"):
        read_gguf(TINY / "tiny-bf16.gguf").tensors["token_embd.weight"].integers()


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_what_is_written_is_read(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((7, 64), np.float32)
    experts = encode("Q8_0", rng.standard_normal((3, 5, 96), np.float32))
    values = {
        "a.u32": 7,
        "a.i32": -7,
        "a.u64": 1 << 40,
        "a.i64": -(1 << 40),
        "a.bool": True,
        "a.f32": 0.5,
        "a.string": "jubako 重箱",
        "a.strings": ["", "x", "é"],
        "a.ints": [1, -2, 3],
        "a.floats": [0.5, 1.5],
        "a.bools": [True, False],
        "a.big": np.array([2**63 + 1], np.uint64),
        "a.empty": [],
    }
    path = tmp_path / "out.gguf"
    with GgufWriter(path, alignment) as writer:
        for key, value in values.items():
            writer.add(key, value)
        writer.add("a.u16", 3, "u16")
        writer.add("a.f64", 0.1, "f64")
        writer.add("a.u64s", [1, 2], "u64")
        writer.declare("dense", "F32", dense.shape)
        writer.declare("experts", "Q8_0", (3, 5, 96))
        assert not path.exists()
        writer.write("dense", dense)
        writer.write("experts", (experts[i] for i in range(3)))
    file = read_gguf(path)
    for key, value in values.items():
        got = file.metadata[key]
        assert got.tolist() == list(value) if isinstance(got, np.ndarray) else got == value, key
        assert type(got) is type(value) or isinstance(got, np.ndarray), key
    assert file.metadata["a.u16"] == 3 and file.metadata["a.f64"] == 0.1
    assert (
        np.asarray(file.metadata["a.u64s"]).dtype == np.uint64 and np.asarray(file.metadata["a.ints"]).dtype == np.int32
    )
    assert file.alignment == alignment and file.tensors["experts"].offset % alignment == 0
    assert np.array_equal(file.tensors["dense"].float32().numpy(), dense)
    assert np.array_equal(file.tensors["experts"].data, experts)
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"12 bytes written, F32 of its shape has 16"),
        GgufWriter(tmp_path / "a") as w,
    ):
        w.declare("x", "F32", (4,))
        w.write("x", np.zeros(3, np.float32))
    with pytest.raises(AssertionError, match=r"x was declared but not written"), GgufWriter(tmp_path / "a") as w:
        w.declare("x", "F32", (4,))
    assert not list(tmp_path.iterdir())


def test_gguf_py_reads_what_we_write(tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader
    with GgufWriter(tmp_path / "a.gguf") as writer:
        writer.add("general.architecture", "qwen4exp")
        writer.add("x.list", ["a", "b"])
        writer.declare("t", "Q8_0", (2, 64))
        writer.write("t", encode("Q8_0", np.ones((2, 64), np.float32)))
    theirs = reader(tmp_path / "a.gguf")
    assert theirs.fields["x.list"].contents() == ["a", "b"]
    assert theirs.tensors[0].shape.tolist() == [64, 2] and theirs.tensors[0].tensor_type.name == "Q8_0"


def test_a_vocabulary_of_248320_tokens_reads_in_under_a_second(tmp_path: Path) -> None:
    tokens = [f"tok{i:x}é" for i in range(248_320)]
    merges = [f"t{i:x} k{i:x}" for i in range(247_587)]
    with GgufWriter(tmp_path / "v.gguf") as writer:
        writer.add("tokenizer.ggml.tokens", tokens)
        writer.add("tokenizer.ggml.token_type", np.ones(len(tokens), np.int32))
        writer.add("tokenizer.ggml.merges", merges)
    started = time.process_time()
    metadata = read_gguf(tmp_path / "v.gguf").metadata
    assert time.process_time() - started < 1
    assert metadata["tokenizer.ggml.tokens"] == tokens and metadata["tokenizer.ggml.merges"] == merges


def _two(kind: int, first: int, second: int, weights: int = 1280) -> bytes:
    """Two tensors of `weights` weights whose data take `first` and `second` bytes."""
    up = -(-first // 32) * 32
    return gguf([], [tensor("a", [weights], kind), tensor("b", [weights], kind, up)], bytes(up + second))


def test_id_42_is_told_apart_by_size(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for size, name in ((1280 // 64 * 18, "Q2_0"), (1280 // 128 * 34, "PQ2_0")):
        path.write_bytes(_two(42, size, size))
        assert {t.type.name for t in read_gguf(path).tensors.values()} == {name}
    path.write_bytes(_two(142, 340, 340))
    assert read_gguf(path).tensors["a"].type.name == "PQ2_0"


def test_a_small_tensor_that_fits_both_follows_the_others(tmp_path: Path) -> None:
    """128 weights take 64 bytes with padding either way."""
    path = tmp_path / "m.gguf"
    lines = [tensor("small", [128], 42), tensor("large", [1280], 42, 64)]
    path.write_bytes(gguf([], lines, bytes(64 + 340)))
    assert {t.type.name for t in read_gguf(path).tensors.values()} == {"PQ2_0"}
    path.write_bytes(gguf([], lines, bytes(64 + 360)))
    assert {t.type.name for t in read_gguf(path).tensors.values()} == {"Q2_0"}


def test_a_truncated_q2_0_file_is_not_taken_for_prism(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(_two(42, 360, 340))
    with pytest.raises(FileFormatError, match=r"'b' ends at byte"):
        read_gguf(path)


def test_version_2_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([], [tensor("a", [4])], np.float32([1, 2, 3, 4]).tobytes(), version=2))
    assert read_gguf(path).tensors["a"].float32().tolist() == [1, 2, 3, 4]


def test_no_tensors_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    assert read_gguf(path).tensors == {} and read_gguf(str(path)).metadata == {}
