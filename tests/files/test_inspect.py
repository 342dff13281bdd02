"""jubako inspect: the sums, from headers alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from raw_gguf import gguf, tensor, u32

from jubako.cli.inspect import as_json, examine, human, inspect
from jubako.files import open_model, read_gguf
from jubako.files.groups import part_of

TINY = Path(__file__).parents[1] / "data" / "tiny"


def test_parts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    inspect([TINY / "tiny-mixed.gguf", TINY / "tiny-mtp.gguf"], json=True)
    found = json.loads(capsys.readouterr().out)
    stored = [t for f in ("tiny-mixed.gguf", "tiny-mtp.gguf") for t in read_gguf(TINY / f).tensors.values()]
    assert found["bytes"] == sum(t.nbytes for t in stored) == sum(part["bytes"] for part in found["parts"])
    assert found["weights"] == 6539012 and found["unused"] == [] and found["problem"] is None
    assert found["sizes"]["experts"] == 12 and found["sizes"]["draft_layers"] == 1
    assert all(part["part"] != "other" for part in found["parts"])


def test_what_a_token_reads() -> None:
    parts = {(p.part, p.type): p for p in examine(open_model(TINY / "tiny-mixed.gguf")).parts}
    assert parts["embedding", "Q5_K"].token_bytes == 176
    assert parts["n-gram table", "IQ4_NL"].token_bytes == 8 * 18
    experts = parts["experts, gate and up", "IQ3_S"]
    assert experts.bytes == 4 * 12 * 64 * 110 and experts.token_bytes == experts.bytes * 3 // 12
    assert experts.bits_per_weight == pytest.approx(3.4375)
    assert parts["output head", "Q6_K"].token_bytes == 1024 * 210
    assert examine(open_model(TINY / "tiny-mixed.gguf")).draft_bytes == 0


def test_a_draft_pass_reads_its_layer_and_the_head() -> None:
    found = examine(open_model([TINY / "tiny-mixed.gguf", TINY / "tiny-mtp.gguf"]))
    draft = read_gguf(TINY / "tiny-mtp.gguf").tensors
    experts = sum(t.nbytes for name, t in draft.items() if "_exps" in name)
    dense = sum(t.nbytes for name, t in draft.items() if "_exps" not in name)
    assert found.draft_bytes == dense + experts * 3 // 12 + 1024 * 210


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    inspect([TINY / "tiny-bf16.gguf"])
    text = capsys.readouterr().out
    assert "4 (3 gated delta net, 1 attention)" in text and "Every tensor is used." in text


def test_a_draft_file_alone_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(examine(open_model(TINY / "tiny-mtp.gguf")))
    assert {part["part"] for part in found["parts"]} == {"draft layer"}
    assert "token_embd.weight" in found["problem"] and found["token_bytes"] is None
    inspect([TINY / "tiny-mtp.gguf"])
    assert "Not a network by itself" in capsys.readouterr().out


def test_unused_tensors_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = tmp_path / "extra.gguf"
    extra.write_bytes(gguf([], [tensor("blk.0.mystery", [4])], bytes(16)))
    inspect([TINY / "tiny-bf16.gguf", extra])
    text = capsys.readouterr().out
    assert "Unused, 1:" in text and "blk.0.mystery" in text


def test_no_data_is_read(tmp_path: Path) -> None:
    """A file whose data section is a hole of a terabyte."""
    path = tmp_path / "hole.gguf"
    path.write_bytes(gguf([u32("x", 1)], [tensor("token_embd.weight", [1 << 20, 1 << 18])]))
    os.truncate(path, 1 << 41)
    found = examine(open_model(path))
    assert found.parts[0].bytes == 1 << 40 and found.problem


def test_names_of_both_kinds() -> None:
    for ours, theirs, part in (
        (
            "blk.0.ffn_gate_exps.weight",
            "model.language_model.layers.0.mlp.experts.gate_up_proj",
            "experts, gate and up",
        ),
        ("blk.0.ffn_down_exps.weight", "model.layers.0.mlp.experts.7.down_proj.weight", "experts, down"),
        ("blk.0.ffn_gate_inp_shexp.weight", "model.layers.0.mlp.shared_expert_gate.weight", "shared expert"),
        ("blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate.weight", "router"),
        ("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight", "hyper-connections"),
        ("blk.0.attn_gate.weight", "model.layers.0.linear_attn.in_proj_z.weight", "gated delta net"),
        ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight", "attention"),
        ("blk.3.indexer.k_norm.weight", "model.layers.3.self_attn.indexer.k_layernorm.weight", "indexer"),
        ("per_layer_token_embd.weight", "model.layers.1.ple.ple_embedding.ngram_embedding.shard_3", "n-gram table"),
        ("blk.1.ple_key.weight", "model.layers.1.ple.key_proj.weight", "n-gram layer"),
        ("blk.4.nextn.eh_proj.weight", "mtp.layers.0.mlp.gate.weight", "draft layer"),
        ("token_embd.weight", "model.embed_tokens.weight", "embedding"),
        ("output.weight", "lm_head.weight", "output head"),
    ):
        assert part_of(ours) == part_of(theirs) == part
    assert part_of("blk.4.attn_q.weight", trunk_layers=4) == "draft layer"
    assert part_of("model.visual.blocks.0.attn.qkv.weight") == "vision"


def test_human() -> None:
    assert [human(n) for n in (999, 1000, 28_800_138_240, 999_600)] == ["999 B", "1 kB", "28.8 GB", "1 MB"]
