"""A few seconds of tools/fuzz_files.py, and hypothesis on single fields: only JubakoError may come out."""

from __future__ import annotations

import time
from pathlib import Path

import fuzz_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_gguf import gguf, key, string, tensor

from jubako.errors import FileFormatError, JubakoError
from jubako.files import open_model, read_gguf

TINY = Path(__file__).parents[1] / "data" / "tiny"
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("seed", [0])
def test_damaged_tiny_files(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    end = time.monotonic() + 4
    for report in fuzz_files.fuzz(fuzz_files.samples(TINY, tmp_path), seed, tmp_path):
        assert not report.failures, report.failures[0]
        if time.monotonic() > end and report.mutants > 50:
            break
    assert report.refused > report.mutants // 4
    assert report.slowest < 1, report.slowest_mutant


@QUICK
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    for head in (b"", b"GGUF\3\0\0\0"):
        (tmp_path / "m.gguf").write_bytes(head + content)
        with pytest.raises(JubakoError):
            read_gguf(tmp_path / "m.gguf")
            raise FileFormatError("an empty file of no tensors is fine")
    (tmp_path / "m.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
    with pytest.raises(JubakoError):
        open_model(tmp_path / "m.safetensors")


@QUICK
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=5),
    st.integers(0, 2**32 - 1) | st.integers(0, 45),
    st.integers(0, 2**64 - 1) | st.integers(0, 20).map(lambda n: 32 * n),
    st.integers(0, 2000),
)
def test_any_tensor_line(tmp_path: Path, dimensions: list[int], kind: int, offset: int, room: int) -> None:
    """Accepted only if the tensor really lies in the file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([], [tensor("a", dimensions, kind, offset)], bytes(room)))
    try:
        found = read_gguf(path).tensors["a"]
    except FileFormatError:
        return
    assert found.shape == tuple(reversed(dimensions)) and found.offset + found.nbytes <= path.stat().st_size
    assert found.float32().shape == found.shape


@QUICK
@given(st.integers(0, 14), st.binary(max_size=60), st.text(max_size=20))
def test_any_metadata_value(tmp_path: Path, kind: int, value: bytes, name: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key(name, kind, value), key("after", 8, string("x"))]))
    try:
        metadata = read_gguf(path).metadata
    except FileFormatError:
        return
    assert name in metadata
