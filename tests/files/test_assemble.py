"""Trunk, draft layer, override files and n-gram side file given together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jubako.errors import FileFormatError
from jubako.files import GgufWriter, open_model

TINY = Path(__file__).parents[1] / "data" / "tiny"
TRUNK, DRAFT = TINY / "tiny-bf16.gguf", TINY / "tiny-mtp.gguf"
TABLE = "per_layer_token_embd.weight"


def write(path: Path, tensors: dict[str, float], **metadata: object) -> Path:
    with GgufWriter(path) as writer:
        for key, value in metadata.items():
            writer.add(key.replace("__", "."), value)  # type: ignore[arg-type]
        for name in tensors:
            writer.declare(name, "F32", (2, 32))
        for name, value in tensors.items():
            writer.write(name, np.full((2, 32), value, np.float32))
    return path


def trunk(path: Path, tensors: dict[str, float], **more: object) -> Path:
    return write(path, tensors, general__architecture="qwen4exp", qwen4exp__block_count=2, **more)


@pytest.mark.parametrize("order", [(TRUNK, DRAFT), (DRAFT, TRUNK), (TRUNK, DRAFT, TRUNK)])
def test_draft_layer_joins_the_trunk(order: tuple[Path, ...]) -> None:
    model = open_model(list(order))
    assert len(model.tensors) == 113 + 32 and not model.replaced
    assert model.metadata["qwen4exp.block_count"] == 5 and model.metadata["qwen4exp.nextn_predict_layers"] == 1
    assert model.metadata["qwen4exp.nextn_shared_target_tensors"] is True
    assert np.array_equal(model.metadata["qwen4exp.attention.compress_ratios"], [0, 0, 0, 4, 4])
    assert model.metadata["general.name"] == open_model(TRUNK).metadata["general.name"]
    assert model.tensors["blk.4.nextn.eh_proj.weight"].file == DRAFT


def test_trunk_alone_is_as_it_was() -> None:
    model = open_model(str(TRUNK))
    assert model.metadata["qwen4exp.block_count"] == 4 and "qwen4exp.nextn_predict_layers" not in model.metadata


def test_a_draft_file_with_its_own_embedding_and_head(tmp_path: Path) -> None:
    base = trunk(tmp_path / "t.gguf", {"token_embd.weight": 1, "output.weight": 2, "blk.0.a": 3, "blk.1.a": 3})
    draft = write(
        tmp_path / "d.gguf",
        {"token_embd.weight": 11, "output.weight": 12, "blk.2.a": 13},
        general__architecture="qwen4exp",
        qwen4exp__block_count=3,
        qwen4exp__nextn_predict_layers=1,
    )
    tensors = open_model([base, draft]).tensors
    values = {name: float(tensor.float32()[0, 0]) for name, tensor in tensors.items()}
    assert values == {
        "token_embd.weight": 1,
        "output.weight": 2,
        "blk.0.a": 3,
        "blk.1.a": 3,
        "blk.2.a": 13,
        "blk.2.nextn.embed_tokens.weight": 11,
        "blk.2.nextn.shared_head_head.weight": 12,
    }


def test_a_draft_layer_of_another_network(tmp_path: Path) -> None:
    base = trunk(tmp_path / "t.gguf", {"blk.0.a": 1, "blk.1.a": 1})
    with pytest.raises(
        FileFormatError, match=r"tiny-mtp.gguf: holds the draft layer of a 'qwen4exp' network of 4 layers"
    ):
        open_model([base, DRAFT])


def test_later_files_override_earlier_ones(tmp_path: Path) -> None:
    base = trunk(tmp_path / "t.gguf", {"a": 1, "b": 1, "c": 1}, x__y=1)
    first = write(tmp_path / "o1.gguf", {"b": 2, "c": 2}, x__y=2, x__z=3)
    second = write(tmp_path / "o2.gguf", {"c": 3})
    model = open_model([base, first, second])
    assert {name: float(t.float32()[0, 0]) for name, t in model.tensors.items()} == {"a": 1, "b": 2, "c": 3}
    assert model.metadata["x.y"] == 1 and model.metadata["x.z"] == 3
    assert [(t.name, t.file.name) for t in model.replaced] == [("b", "t.gguf"), ("c", "t.gguf"), ("c", "o1.gguf")]


def test_ngram_side_file(tmp_path: Path) -> None:
    base = trunk(tmp_path / "t.gguf", {"a": 1})
    side = write(tmp_path / "n.gguf", {TABLE: 5})
    assert open_model([base, side]).tensors[TABLE].file == side
    assert open_model([side, base]).metadata["qwen4exp.block_count"] == 2


def test_ngram_side_file_named_by_the_metadata(tmp_path: Path) -> None:
    key = {"qwen4exp__ple__table_file": "t.ngram"}
    base = trunk(tmp_path / "t.gguf", {"a": 1}, **key)
    assert TABLE not in open_model(base).tensors
    side = write(tmp_path / "t.ngram", {TABLE: 5})
    assert open_model(base).tensors[TABLE].file == side
    assert open_model([base, side]).paths == [base, side]
    side.write_bytes(bytes(640))
    with pytest.raises(FileFormatError, match=rf"t.ngram: the n-gram side file is no GGUF; make it .* {TABLE}"):
        open_model(base)


@pytest.mark.parametrize("name", ["../t.ngram", "/etc/passwd", "a\\b", "", "..", "x\0y"])
def test_side_file_can_not_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    base = trunk(tmp_path / "t.gguf", {"a": 1}, qwen4exp__ple__table_file=name)
    with pytest.raises(FileFormatError, match=r"ple.table_file is .*; a file name in the same directory"):
        open_model(base)


def test_layer_counts_that_are_no_counts(tmp_path: Path) -> None:
    for value in (-1, 1 << 40, 0.5, "4", [1], True):
        path = write(tmp_path / "t.gguf", {"blk.0.a": 1}, general__architecture="qwen4exp", qwen4exp__block_count=value)
        with pytest.raises(FileFormatError, match=r"block_count is .*; a small integer was expected"):
            open_model(path)
