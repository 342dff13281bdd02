"""Direct reads give the file's bytes from anywhere, and say what is wrong with a file that shrinks or is gone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from jubako import _cpu


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, np.ndarray]:
    data = np.random.default_rng(0).integers(0, 256, 3 * 4096 + 100, np.uint8)
    path = tmp_path / "weights.bin"
    path.write_bytes(data.tobytes())
    return path, data


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 1), (4095, 2), (4096, 4096), (13, 12000), (3 * 4096, 100), (0, 12388)]
)
def test_bytes_from_anywhere(file: tuple[Path, np.ndarray], offset: int, size: int) -> None:
    path, data = file
    assert np.array_equal(_cpu.Reader([str(path)]).read(0, offset, size), data[offset : offset + size])


def test_several_files(file: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    path, data = file
    (tmp_path / "other").write_bytes(b"other")
    reader = _cpu.Reader([str(path), str(tmp_path / "other")], 2)
    assert reader.read(1, 1, 3).tobytes() == b"the"
    assert np.array_equal(reader.read(0, 5, 100), data[5:105])
    assert reader.bytes_read >= 103


def test_memory_outlives_the_reader(file: tuple[Path, np.ndarray]) -> None:
    path, data = file
    read = _cpu.Reader([str(path)]).read(0, 10, 5000)
    assert np.array_equal(read, data[10:5010])


@pytest.mark.parametrize("cut", [0, 4096, 5000, 12000])
def test_a_file_cut_while_in_use(file: tuple[Path, np.ndarray], cut: int) -> None:
    path, data = file
    reader = _cpu.Reader([str(path)])
    os.truncate(path, cut)
    with pytest.raises(_cpu.ReadError, match=r"weights\.bin: reading 12,200 bytes at 100 failed: the file ends"):
        reader.read(0, 100, 12200)
    if cut:
        assert np.array_equal(reader.read(0, 0, cut), data[:cut])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(_cpu.ReadError, match=r"gone: can't be opened: No such file"):
        _cpu.Reader([str(tmp_path / "gone")])


def test_a_deleted_file_is_still_read(file: tuple[Path, np.ndarray]) -> None:
    path, data = file
    reader = _cpu.Reader([str(path)])
    path.unlink()
    assert np.array_equal(reader.read(0, 0, 5000), data[:5000])


def test_rows_in_the_order_asked_for(file: tuple[Path, np.ndarray]) -> None:
    path, data = file
    table = _cpu.RowTable(_cpu.Reader([str(path)], 3), 0, 20, 170, 70)
    ids = np.array([69, 0, 24, 24, 1, 68], np.int64)
    assert np.array_equal(table.begin(ids).take(170), data[20 : 20 + 70 * 170].reshape(70, 170)[ids])
    many = np.random.default_rng(1).integers(0, 70, 500)
    assert np.array_equal(table.begin(many).take(170), data[20 : 20 + 70 * 170].reshape(70, 170)[many])
    with pytest.raises(ValueError, match="no such row"):
        table.begin(np.array([70], np.int64))


def test_rows_of_a_file_that_was_cut(file: tuple[Path, np.ndarray]) -> None:
    path, _ = file
    table = _cpu.RowTable(_cpu.Reader([str(path)]), 0, 0, 100, 100)
    os.truncate(path, 4096)
    assert table.begin(np.array([3], np.int64)).take(100).shape == (1, 100)
    with pytest.raises(_cpu.ReadError, match=r"reading 100 bytes at 9,000 failed: the file ends after 4,096 bytes"):
        table.begin(np.array([3, 90], np.int64)).take(100)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
def test_file_systems_without_direct_reads(tmp_path: Path) -> None:
    """Whatever they answer to the flag, the bytes are the file's."""
    data = np.random.default_rng(2).integers(0, 256, 9000, np.uint8)
    path = Path("/dev/shm") / f"jubako-{os.getpid()}.bin"
    path.write_bytes(data.tobytes())
    try:
        reader = _cpu.Reader([str(path)], 2)
        assert np.array_equal(reader.read(0, 1, 8999), data[1:])
        os.truncate(path, 5000)
        with pytest.raises(_cpu.ReadError, match="the file ends after 5,000 bytes"):
            reader.read(0, 1, 8999)
    finally:
        path.unlink()
