"""Safetensors: what the official library writes, shards, and headers that lie."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from jubako.errors import FileFormatError
from jubako.files import open_model

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tiny"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    values = {
        name: torch.randn(3, 4, 8, generator=g).to(getattr(torch, name)) for name in ("bfloat16", "float16", "float32")
    }
    return {**values, "int64": torch.tensor([23703573157769, -1]), "scalar": torch.tensor(0.5)}


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_the_library_writes(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    for path in (tmp_path, tmp_path / "model.safetensors"):
        model = open_model(path)
        assert model.kind == "safetensors" and model.config == {"hidden_size": 8} and model.metadata == {}
        assert model.tensors.keys() == tensors.keys()
        for name in ("bfloat16", "float16", "float32"):
            assert torch.equal(model.tensors[name].float32(), tensors[name].float())
            assert model.tensors[name].shape == (3, 4, 8)
        assert model.tensors["int64"].integers().tolist() == [23703573157769, -1]
        assert model.tensors["scalar"].shape == (1,) and model.tensors["scalar"].float32().item() == 0.5


@pytest.mark.skipif(not GOLDEN.exists(), reason="the golden files lie beside the project")
def test_tiny_checkpoint_equals_the_bf16_gguf() -> None:
    ours, theirs = open_model(GOLDEN / "model.safetensors").tensors, open_model(GOLDEN / "tiny-bf16.gguf").tensors
    name = next(n for n in ours if n.endswith("embed_tokens.weight"))
    assert np.array_equal(ours[name].data, theirs["token_embd.weight"].data)


def sharded(directory: Path, weight_map: dict[str, Any] | None = None) -> Path:
    for i in (1, 2):
        save_file({f"t{i}": torch.full((2,), float(i))}, directory / f"model-{i:05d}-of-00002.safetensors")
    names = {f"t{i}": f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)}
    index = {"metadata": {}, "weight_map": names if weight_map is None else weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    return directory


def test_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for path in (tmp_path, index, tmp_path / "model-00002-of-00002.safetensors"):
        model = open_model(path)
        assert sorted(model.tensors) == ["t1", "t2"] and len(model.paths) == 2
    index.unlink()
    assert sorted(open_model(tmp_path).tensors) == ["t1", "t2"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    for _ in ("with the index", "by the names"):
        with pytest.raises(FileFormatError, match=r"1 of 2 files are missing: model-00002-of-00002.safetensors"):
            open_model(tmp_path)
        (tmp_path / "model.safetensors.index.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "place",
    ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "c:x.safetensors", "config.json", 3],
)
def test_the_index_can_not_lead_out_of_the_directory(tmp_path: Path, place: Any) -> None:
    with pytest.raises(FileFormatError, match=r"weight_map places 't1' in .*; it may only name files beside it"):
        open_model(sharded(tmp_path, {"t1": place}))


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"weight_map places 'zz' in model-00001-of-00002.safetensors, which"):
        open_model(sharded(tmp_path, {"zz": "model-00001-of-00002.safetensors"}))
    for bad in ({}, [], 7):
        with pytest.raises(FileFormatError, match=r"weight_map is"):
            open_model(sharded(tmp_path, bad))  # type: ignore[arg-type]


DEEP = b"[" * 100_000
CASES: dict[str, tuple[bytes, str]] = {
    "short": (b"\x08\0\0", "too short"),
    "length": (raw({}, length=1 << 60), "header length is 1,152,921,504,606,846,976"),
    "not json": (raw(b"{'a'"), "JSON can't be read"),
    "not utf-8": (raw(b'{"\xff": 1}'), "JSON can't be read"),
    "too deep": (raw(DEEP), "JSON can't be read"),
    "huge integer": (raw(b'{"a": ' + b"9" * 10_000 + b"}"), "JSON can't be read"),
    "not an object": (raw([1]), "where a JSON object was expected"),
    "twice": (raw(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "escape": (raw({"a\x1b[2J": entry()}, bytes(16)), "holds control characters"),
    "ten million lists": (raw(b"[" + b"[]," * 10_000_000 + b"0]"), "holds more than 1,048,576 values"),
    "entry": (raw({"a": 3}), "'a' is described by 3"),
    "dtype": (raw({"a": entry("F8_E4M3")}, bytes(16)), "'a' has the dtype 'F8_E4M3'; Jubako reads F64, F32"),
    "dtype list": (raw({"a": entry(["F32"])}, bytes(16)), "'a' has the dtype"),
    "shape negative": (raw({"a": entry(shape=(-4,))}, bytes(16)), "'a' has the shape"),
    "shape bool": (raw({"a": entry(shape=(True,))}, bytes(16)), "'a' has the shape"),
    "shape float": (raw({"a": entry(shape=(4.0,))}, bytes(16)), "'a' has the shape"),
    "shape zero": (raw({"a": entry(shape=(0, 4))}, bytes(16)), "'a' has the shape"),
    "shape deep": (raw({"a": entry(shape=[1] * 9)}, bytes(16)), "'a' has the shape"),
    "overflow": (raw({"a": entry(shape=(1 << 32, 1 << 32))}, bytes(16)), "does not fill the bytes 0 to 16"),
    "offsets": (raw({"a": entry(offsets=(0, 16, 32))}, bytes(16)), "'a' has the data_offsets"),
    "reversed": (raw({"a": entry(offsets=(16, 0))}, bytes(16)), "does not fill the bytes 16 to 0"),
    "beyond": (raw({"a": entry(offsets=(8, 24))}, bytes(16)), "'a' ends 8 bytes after the end of the file"),
    "overlap": (raw({"a": entry(), "b": entry(offsets=(4, 20))}, bytes(20)), "'a' and 'b' overlap"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_at_once(case: str, tmp_path: Path) -> None:
    content, message = CASES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(FileFormatError, match=message) as caught:
        open_model(path)
    assert time.process_time() - started < 1 and str(path) in str(caught.value)


def test_config_is_needed(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match=r"config.json: no such file"):
        open_model(tmp_path)
    with pytest.raises(FileFormatError, match=r"without further files"):
        open_model([tmp_path, tmp_path / "other.gguf"])
