"""Split sets: found by name, checked by their keys, metadata-only first parts, and every way of not fitting."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jubako.errors import FileFormatError
from jubako.files import GgufWriter, open_model

Write = Callable[..., Path]


@pytest.fixture
def write_part(tmp_path: Path) -> Write:
    def write(
        number: int,
        count: int,
        names: list[str],
        total: int | None = None,
        no: int | None = None,
        of: int | None = None,
    ) -> Path:
        path = tmp_path / f"m-{number:05d}-of-{count:05d}.gguf"
        with GgufWriter(path) as writer:
            if number == 1:
                writer.add("general.architecture", "qwen4exp")
                writer.add("qwen4exp.block_count", 2)
            writer.add("split.no", number - 1 if no is None else no, "u16")
            writer.add("split.count", count if of is None else of, "u16")
            if total is not None:
                writer.add("split.tensors.count", total, "i32")
            for name in names:
                writer.declare(name, "F32", (2, 8))
            for i, name in enumerate(names):
                writer.write(name, np.full((2, 8), 10 * number + i, np.float32))
        return path

    return write


def test_any_part_opens_the_set(write_part: Write, tmp_path: Path) -> None:
    """Part 1 holds metadata only; layer 0 straddles parts 2 and 3."""
    parts = [
        write_part(1, 3, [], 3),
        write_part(2, 3, ["token_embd.weight", "blk.0.a"], 3),
        write_part(3, 3, ["blk.0.b"], 3),
    ]
    for given in (parts[0], parts[2], parts, parts[::-1], tmp_path):
        model = open_model(given)
        assert model.kind == "gguf" and model.paths == parts
        assert sorted(model.tensors) == ["blk.0.a", "blk.0.b", "token_embd.weight"]
        assert model.tensors["blk.0.b"].file == parts[2] and model.tensors["blk.0.b"].float32()[1, 7] == 30
        assert model.metadata["qwen4exp.block_count"] == 2


def test_missing_parts_are_named(write_part: Write) -> None:
    parts = [write_part(i, 4, []) for i in (1, 2, 3, 4)]
    parts[1].unlink()
    parts[3].unlink()
    with pytest.raises(
        FileFormatError, match=r"one of 4 parts, and 2 are not beside it: m-00002-of-00004.gguf, m-00004"
    ):
        open_model(parts[0])


def test_ten_thousand_missing_parts_are_not_all_listed(write_part: Write) -> None:
    with pytest.raises(FileFormatError, match=r"9999 are not beside it: .* and 9994 more") as caught:
        open_model(write_part(1, 10000, []))
    assert len(str(caught.value)) < 600


def test_wrong_number(write_part: Write) -> None:
    write_part(1, 2, [])
    with pytest.raises(FileFormatError, match=r"00002-of-00002.gguf: split.no is 0; by its name it must be 1"):
        open_model(write_part(2, 2, [], no=0))


def test_wrong_count(write_part: Write) -> None:
    write_part(1, 2, [])
    with pytest.raises(FileFormatError, match=r"split.count is 3; by its name it must be 2"):
        open_model(write_part(2, 2, [], of=3))


def test_wrong_total(write_part: Write) -> None:
    write_part(1, 2, ["a"], total=3)
    with pytest.raises(FileFormatError, match=r"split.tensors.count is 3, but the parts hold 2 tensors"):
        open_model(write_part(2, 2, ["b"]))


@pytest.mark.parametrize("value", [[], [2, 2], "2", 2.5])
def test_split_keys_of_other_types(write_part: Write, tmp_path: Path, value: object) -> None:
    write_part(2, 2, ["b"])
    for key in ("split.no", "split.count", "split.tensors.count"):
        with GgufWriter(tmp_path / "m-00001-of-00002.gguf") as writer:
            for name, right in (("split.no", 0), ("split.count", 2), ("split.tensors.count", 1)):
                writer.add(name, value if name == key else right)  # type: ignore[arg-type]
        with pytest.raises(FileFormatError, match=key):
            open_model(tmp_path)


def test_a_tensor_in_two_parts(write_part: Write) -> None:
    write_part(1, 2, ["a"])
    with pytest.raises(FileFormatError, match=r"tensor 'a' is in m-00001-of-00002.gguf too"):
        open_model(write_part(2, 2, ["a"]))


def test_a_part_under_another_name(write_part: Write, tmp_path: Path) -> None:
    path = shutil.copy(write_part(2, 3, ["a"]), tmp_path / "renamed.gguf")
    with pytest.raises(FileFormatError, match=r"renamed.gguf: is one of 3 parts by its split.count"):
        open_model(path)


def test_parts_without_split_keys(tmp_path: Path) -> None:
    for i in (1, 2):
        with GgufWriter(tmp_path / f"m-{i:05d}-of-00002.gguf") as writer:
            writer.add("general.architecture", "x")
    with pytest.raises(FileFormatError, match=r"lacks split.count"):
        open_model(tmp_path)


def test_a_set_of_one(write_part: Write) -> None:
    path = write_part(1, 1, ["a"], 1)
    assert list(open_model(path).tensors) == ["a"]


def test_two_models_in_a_directory(write_part: Write, tmp_path: Path) -> None:
    write_part(1, 1, ["a"])
    shutil.copy(tmp_path / "m-00001-of-00001.gguf", tmp_path / "other-00001-of-00001.gguf")
    with pytest.raises(FileFormatError, match=r"holds several models: m-00001-of-00001.gguf, other.*; say which"):
        open_model(tmp_path)
