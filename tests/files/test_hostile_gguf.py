"""Files that lie: one clear FileFormatError each, at once and in little memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from raw_gguf import ARRAY, BOOL, STRING, U8, U64, array, gguf, key, string, tensor, u32

from jubako.errors import FileFormatError
from jubako.files import open_model, read_gguf

HUGE = 1 << 60
ONE = [tensor("a", [4])]
F32_4 = bytes(16)

CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "four bytes": (b"GGUF", "version needs 4 bytes, but the file ends after 0"),
    "other magic": (b"PK\3\4" + bytes(64), r"begins with b'PK.*give a \.gguf"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "version 1": (gguf(version=1), "version is 1; Jubako reads 2 and 3|version is 1 "),
    "big endian": (gguf(version=3 << 24), "big-endian"),
    "key count": (gguf(key_count=HUGE), r"metadata key count is 1,152,921,504,606,846,976, more than the rest"),
    "key count, all ones": (gguf(key_count=2**64 - 1), "metadata key count is 18,446,744,073,709,551,615"),
    "tensor count": (gguf(tensor_count=HUGE), "tensor count is 1,152,921,504,606,846,976, more than the rest"),
    "too many tensors": (gguf(tensor_count=1 << 17) + bytes(24 << 17), "tensor count is 131,072; Jubako accepts"),
    "key length": (gguf([string("k" * 9, HUGE)]), "metadata key 0 is 1,152,921,504,606,846,976 bytes long"),
    "key runs out": (gguf([string("k" * 9, 50)]), "metadata key 0 needs 50 bytes, but the file ends after 9"),
    "key not utf-8": (gguf([key(b"\xff", STRING, string("x"))]), "metadata key 0 is not valid UTF-8"),
    "key twice": (gguf([u32("a", 1), u32("a", 2)]), "metadata key 'a' occurs twice"),
    "value type": (gguf([key("a", 13, bytes(8))]), "metadata 'a' has the unknown value type 13"),
    "value cut": (gguf([key("a", U64, bytes(7))]), "metadata 'a' needs 8 bytes, but the file ends after 7"),
    "bool of 2": (gguf([key("a", BOOL, b"\2")]), "metadata 'a' is a bool of value 2"),
    "string length": (gguf([key("a", STRING, string("x", HUGE))]), "'a' is 1,152,921,504,606,846,976 bytes long"),
    "string not utf-8": (gguf([key("a", STRING, string(b"\xc3"))]), "'a' is not valid UTF-8"),
    "array count": (gguf([array("a", U64, HUGE, b"")]), "'a' count is 1,152,921,504,606,846,976, more than the rest"),
    "array of strings count": (gguf([array("a", STRING, HUGE, b"")]), "'a' count is 1,152,921,504,606,846,976"),
    "too many strings": (gguf([array("a", STRING, 1 << 22, bytes(8 << 22))]), "'a' count is 4,194,304; Jubako acc"),
    "string in array": (gguf([array("a", STRING, 2, string("x") + string("y", HUGE))]), r"'a'\[1\] runs beyond"),
    "array of bytes not utf-8": (gguf([array("a", STRING, 1, string(b"\x80"))]), r"'a'\[0\] is not valid UTF-8"),
    "array of arrays": (gguf([array("a", ARRAY, 1, struct.pack("<IQ", U8, 0))]), "array of arrays"),
    "array type": (gguf([array("a", 99, 1, bytes(8))]), "unknown element type 99"),
    "bool array": (gguf([array("a", BOOL, 2, b"\1\7")]), "holds a bool of value 7"),
    "alignment 0": (gguf([u32("general.alignment", 0)], ONE, F32_4), "alignment is 0; it must be a power of two"),
    "alignment 48": (gguf([u32("general.alignment", 48)], ONE, F32_4), "alignment is 48"),
    "alignment huge": (gguf([u32("general.alignment", 1 << 31)], ONE, F32_4), "alignment is 2147483648"),
    "alignment text": (gguf([key("general.alignment", STRING, string("8"))], ONE, F32_4), "alignment is '8'"),
    "tensor name twice": (gguf([], ONE * 2, F32_4), "tensor 'a' occurs twice"),
    "tensor name with escape": (gguf([], [tensor("a\x1b[2J", [4])], F32_4), r"'a\\x1b\[2J' holds control characters"),
    "key with newline": (gguf([u32("a\n", 1)]), "holds control characters"),
    "tensor without name": (gguf([], [tensor("", [4])], F32_4), "tensor '' has no name"),
    "no dimensions": (gguf([], [tensor("a", [], rank=0)], F32_4), "'a' has 0 dimensions"),
    "five dimensions": (gguf([], [tensor("a", [1] * 5)], F32_4), "'a' has 5 dimensions"),
    "2^31 dimensions": (gguf([], [tensor("a", [4], rank=1 << 31)], F32_4), "'a' has 2147483648 dimensions"),
    "dimension 0": (gguf([], [tensor("a", [4, 0])], F32_4), r"'a' has the shape \(0, 4\): a dimension of 0"),
    "product 2^64": (gguf([], [tensor("a", [1 << 32, 1 << 32])], F32_4), "product of its dimensions overflows"),
    "product 2^64 + 4": (gguf([], [tensor("a", [4, (1 << 62) + 1])], F32_4), "product of its dimensions overflows"),
    "block type": (gguf([], [tensor("a", [4], kind=66)], F32_4), "'a': block type 66 is not known"),
    "partial block": (gguf([], [tensor("a", [33], kind=8)], bytes(64)), "'a': a row of 33 is not whole Q8_0 blocks"),
    "offset unaligned": (gguf([], [tensor("a", [4], offset=8)], bytes(64)), "'a' has the offset 8, no multiple"),
    "offset beyond": (gguf([], [tensor("a", [4], offset=HUGE)], F32_4), "'a' ends at byte .* but the file has"),
    "offset wraps": (gguf([], [tensor("a", [4], offset=2**64 - 32)], F32_4), "'a' ends at byte .* but the file has"),
    "data cut": (gguf([], ONE, bytes(15)), "'a' ends at byte 80, but the file has 79; the download is incomplete"),
    "no data": (gguf([], ONE), "'a' ends at byte"),
    "overlap": (
        gguf([], [tensor("a", [16]), tensor("b", [4], offset=32)], bytes(128)),
        r"'a' \(F32, 64 bytes\) overlaps the tensor at offset 32",
    ),
    "same place": (gguf([], [tensor("a", [4]), tensor("b", [4])], bytes(64)), "overlaps the tensor at offset 0"),
    "tensor line cut": (gguf(tensor_count=1) + string("a") + bytes(20), "needs 8 bytes|0 dimensions"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_at_once(case: str, tmp_path: Path) -> None:
    content, message = CASES[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(FileFormatError, match=message) as caught:
        read_gguf(path)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert seconds < 1 and peak < 4 << 20
    with pytest.raises(FileFormatError, match=message):
        open_model(path)


def test_the_longest_header_is_bounded(tmp_path: Path) -> None:
    """A sparse file of 64 GB whose one string array claims all of it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([array("a", U8, (64 << 30) - 100, b"")]))
    os.truncate(path, 64 << 30)
    started = time.process_time()
    with pytest.raises(FileFormatError, match=r"more than the rest|beyond the"):
        read_gguf(path)
    assert time.process_time() - started < 1


def test_as_many_empty_strings_as_allowed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([array("a", STRING, 1 << 20, bytes(8 << 20)), array("b", STRING, 1, bytes(8))]))
    with pytest.raises(FileFormatError, match=r"'b' holds 1 strings; Jubako accepts up to 1,048,576 in a file"):
        read_gguf(path)


def test_not_files(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(FileFormatError, match=r"is a directory"):
        read_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FileFormatError, match=r"not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match=r"holds neither .gguf nor .safetensors"):
        open_model(tmp_path / "empty")
    with pytest.raises(FileFormatError, match=r"^no model file was given"):
        open_model([])


def test_names_that_would_control_a_terminal_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([], [tensor("\x1b[2J", [4], kind=66)], F32_4))
    with pytest.raises(FileFormatError) as caught:
        read_gguf(path)
    assert "\x1b" not in str(caught.value)
