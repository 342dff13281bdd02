"""Sizes from metadata: what is tolerated, what is refused, and in which words."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jubako.arch.config import Config, yarn_magnitude
from jubako.errors import FileFormatError, RequestError
from jubako.files import ModelFiles, open_model

P = "qwen4exp."
REQUIRED = (
    "block_count", "context_length", "embedding_length", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "expert_count", "expert_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
    "ssm.inner_size", "hyper_connection.count", "hyper_connection.low_rank", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k", "ple.layers", "ple.ngram_size", "ple.heads_per_ngram",
    "ple.conv_kernel", "ple.eos_token_id", "embedding_length_per_layer_input", "ple.layer_multipliers",
    "ple.head_vocab_sizes", "ple.head_offsets",
)  # fmt: skip
HOSTILE = (
    0,
    -1,
    2**31,
    2**63,
    2**200,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    "text",
    "",
    True,
    [],
    [0],
    [-1],
    [[1]],
    None,
)


@pytest.fixture(scope="module")
def files(tiny: Path) -> ModelFiles:
    return open_model([tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"])


def changed(files: ModelFiles, **fields: Any) -> ModelFiles:
    """The files with metadata fields set, or removed where the value is `...`; `__` stands for a dot."""
    metadata = dict(files.metadata)
    for name, value in fields.items():
        metadata[P + name.replace("__", ".")] = value
    return replace(files, metadata={key: value for key, value in metadata.items() if value is not ...})


def test_the_tiny_model(files: ModelFiles) -> None:
    config = Config.from_files(files)
    assert (config.layers, config.draft_layers, config.vocabulary, config.hidden) == (4, 1, 1024, 256)
    assert config.recurrent == (True, True, True, False)
    assert config.compress_ratios == (0, 0, 0, 4, 4)
    assert (config.heads, config.kv_heads, config.head_dim, config.rope_dims) == (6, 2, 64, 16)
    assert (config.index_heads, config.index_dim, config.index_budget, config.index_blocks(4)) == (4, 32, 64, 16)
    assert (config.gdn_key_heads, config.gdn_value_heads, config.gdn_dim) == (2, 6, 32)
    assert (config.gdn_channels, config.gdn_inner, config.conv_kernel) == (320, 192, 4)
    assert (config.experts, config.experts_used, config.expert_size, config.shared_expert_size) == (12, 3, 64, 64)
    assert (config.streams, config.hyper_rank, config.context_length) == (4, 32, 8192)
    assert config.ngram is not None
    assert (config.ngram.layer, config.ngram.heads, config.ngram.width, config.ngram.conv_past) == (1, 8, 32, 9)
    assert config.ngram.rows == 3701 + 563
    assert config.ngram.image_token == config.ngram.eos == 1011


def test_gguf_and_safetensors_agree(files: ModelFiles, tiny_checkpoint: Path) -> None:
    converted = Config.from_files(open_model(tiny_checkpoint))
    assert replace(converted, name="") == replace(Config.from_files(files), name="")


@pytest.mark.parametrize(
    "fields",
    [
        {"expert_feed_forward_length": [64] * 5},
        {"expert_feed_forward_length": np.array([64] * 5, dtype=np.uint8)},
        {"attention__head_count": np.array([0, 0, 0, 6, 6], dtype=np.int64)},
        {"attention__head_count_kv": [0, 0, 0, 2]},
        {"attention__compress_ratios": np.array([0, 0, 0, 4], dtype=np.int16)},
        {"attention__compress_ratios": [0, 0, 0, 4, 4, 4]},
        {"attention__compress_ratios": 4},
        {"attention__recurrent_layers": [1, 1, 1, 0, 0]},
        {"attention__recurrent_layers": np.array([True, True, True, False])},
        {"attention__recurrent_layers": ...},
        {"embedding_length": 256.0},
        {"embedding_length": np.uint64(256)},
        {"expert_count": [12]},
        {"ple__layers": 1},
        {"ple__head_offsets": [0, 503, 1012, 1533, 2056, 2597, 3144, 3701]},
        {"ple__image_token_id": 0},
    ],
    ids=str,
)
def test_other_ways_to_write_the_same(files: ModelFiles, fields: dict[str, Any]) -> None:
    assert Config.from_files(changed(files, **fields)) == Config.from_files(files)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_field_is_named(files: ModelFiles, key: str) -> None:
    with pytest.raises(FileFormatError, match=rf"tiny-bf16.*required field {P + key} is missing"):
        Config.from_files(changed(files, **{key: ...}))


@pytest.mark.parametrize("key", [*REQUIRED, "attention.recurrent_layers", "nextn_predict_layers", "rope.scaling.type"])
def test_hostile_values_are_refused_or_harmless(files: ModelFiles, key: str) -> None:
    """No value of any field may end in another exception than FileFormatError."""
    refused = 0
    for value in HOSTILE:
        try:
            Config.from_files(changed(files, **{key: value}))
        except FileFormatError as error:
            assert P in str(error) and "tiny-bf16" in str(error)
            refused += 1
    assert refused >= 10


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"attention__head_count": 5}, "attention.head_count is 5.*multiple of the 2"),
        ({"attention__value_length": 32}, "attention.value_length is 32.*64"),
        ({"rope__dimension_count": 15}, "rope.dimension_count is 15"),
        ({"rope__dimension_count": 66}, "rope.dimension_count is 66"),
        ({"rope__dimension_count": 48}, "rope.dimension_count is 48.*index heads of 32"),
        ({"ssm__time_step_rank": 5}, "ssm.time_step_rank is 5"),
        ({"ssm__inner_size": 128}, "ssm.inner_size is 128"),
        ({"expert_used_count": 13}, "expert_used_count is 13"),
        ({"expert_feed_forward_length": [64, 32, 64, 64]}, "expert_feed_forward_length"),
        ({"hyper_connection__count": 1}, "hyper_connection.count is 1"),
        ({"attention__indexer__top_k": 66}, "top_k is 66.*block size 4"),
        ({"attention__indexer__top_k": 1 << 24}, "top_k is 16777216"),  # its lists of blocks would fill the memory
        ({"attention__compress_ratios": [0, 0, 4]}, "compress_ratios.*4 layers"),
        ({"attention__recurrent_layers": [1, 1]}, "recurrent_layers.*4 layers"),
        ({"attention__recurrent_layers": [2, 1, 1, 0]}, "recurrent_layers"),
        ({"ple__layers": [3]}, r"ple.layers is \(3,\).*recurrent"),
        ({"ple__layers": [0, 1]}, "ple.layers.*exactly one"),
        ({"ple__layers": [4]}, "ple.layers is 4"),
        ({"ple__heads_per_ngram": 64}, "128 heads"),
        ({"ple__layer_multipliers": [1, 3]}, "layer_multipliers.*3 entries"),
        ({"ple__head_offsets": [2**31 - 400] * 8}, "head_offsets.*2\\^31"),
        ({"ple__eos_token_id": 1024}, "eos_token_id is 1024"),
        ({"nextn_predict_layers": 2}, "nextn_predict_layers is 2"),
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"ple__head_vocab_sizes": np.ones(1 << 17, dtype=np.uint64)}, "head_vocab_sizes.*131072 entries"),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_contradict_each_other(files: ModelFiles, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(FileFormatError, match=named):
        Config.from_files(changed(files, **fields))


def test_another_architecture(files: ModelFiles) -> None:
    with pytest.raises(FileFormatError, match=r"general\.architecture is 'llama'"):
        Config.from_files(replace(files, metadata=files.metadata | {"general.architecture": "llama"}))


def test_block_size_zero_with_indexer_warns_and_can_be_set(files: ModelFiles, caplog: pytest.LogCaptureFixture) -> None:
    zeros = changed(files, attention__compress_ratios=[0, 0, 0, 0, 0])
    with caplog.at_level(logging.WARNING):
        assert Config.from_files(zeros).compress_ratios == (0, 0, 0, 0, 0)
    assert "layer 3 has indexer tensors but compress_ratios says 0" in caplog.text
    caplog.clear()
    assert Config.from_files(zeros, compress_ratio=4) == Config.from_files(files)
    assert caplog.text == ""
    with pytest.raises(RequestError, match="compress_ratio is 0"):
        Config.from_files(zeros, compress_ratio=0)


def test_old_draft_head_is_dense(files: ModelFiles) -> None:
    assert Config.from_files(changed(files, attention__compress_ratios=[0, 0, 0, 4, 0])).compress_ratios[-1] == 0


def test_dense_network_needs_no_indexer_fields(files: ModelFiles) -> None:
    fields = {f"attention.indexer.{key}": ... for key in ("head_count", "key_length", "top_k")}
    config = Config.from_files(changed(files, attention__compress_ratios=..., **fields))
    assert (config.index_budget, config.compress_ratios) == (0, (0,) * 5)


def test_yarn_from_metadata_equals_the_users(files: ModelFiles) -> None:
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8192}
    config = Config.from_files(changed(files, **scaling, context_length=4 * 8192))
    assert config == Config.from_files(files).with_yarn(4.0)
    assert config.rope_magnitude == pytest.approx(0.1 * math.log(4) + 1)
    plain = Config.from_files(files).rope_frequencies()
    stretched = config.rope_frequencies()
    assert float(stretched[0]) == float(plain[0]) == 1.0  # the fastest pair keeps its pace, the slowest slows down
    assert float(stretched[-1]) == pytest.approx(float(plain[-1]) / 4)
    with pytest.raises(FileFormatError, match="original_context_length is missing"):
        Config.from_files(changed(files, **{**scaling, "rope.scaling.original_context_length": ...}))
    with pytest.raises(RequestError, match="YaRN"):
        config.with_yarn(0.5)


def test_linear_scaling(files: ModelFiles) -> None:
    config = Config.from_files(changed(files, **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}))
    assert config.rope_magnitude == 1.0
    assert config.rope_frequencies().tolist() == (Config.from_files(files).rope_frequencies() / 2).tolist()


class TestHuggingFace:
    @pytest.fixture
    def checkpoint(self, tiny_checkpoint: Path) -> ModelFiles:
        return open_model(tiny_checkpoint)

    def with_config(self, checkpoint: ModelFiles, **fields: Any) -> ModelFiles:
        config = {key: value for key, value in (checkpoint.config | fields).items() if value is not ...}
        return replace(checkpoint, config=config)

    @pytest.mark.parametrize(
        "key",
        [
            "model_type", "hidden_act", "output_gate_type", "num_hidden_layers", "hidden_size", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "num_attention_heads", "num_key_value_heads",
            "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
            "linear_num_value_heads", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
            "shared_expert_intermediate_size", "hc_count", "hc_lowrank", "indexer_n_heads", "indexer_kv_heads",
            "indexer_head_dim", "indexer_budget", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram",
            "eos_token_id",
        ],
    )  # fmt: skip
    def test_a_missing_field_is_named(self, checkpoint: ModelFiles, key: str) -> None:
        with pytest.raises(FileFormatError, match=rf"config.json.*{key}"):
            Config.from_files(self.with_config(checkpoint, **{key: ...}))

    @pytest.mark.parametrize(
        "key",
        [
            "num_hidden_layers", "hidden_size", "rope_parameters", "layer_types", "head_dim", "ple_layer_ids",
            "eos_token_id", "indexer_compress_ratio", "rms_norm_eps",
        ],
    )  # fmt: skip
    def test_hostile_values(self, checkpoint: ModelFiles, key: str) -> None:
        for value in HOSTILE:
            try:
                Config.from_files(self.with_config(checkpoint, **{key: value}))
            except FileFormatError:
                continue

    def test_unsupported_variants_are_refused(self, checkpoint: ModelFiles) -> None:
        for fields in ({"output_gate_type": "silu"}, {"hidden_act": "gelu"}, {"norm_topk_prob": False},
                       {"attention_bias": True}, {"layer_types": ["sliding_attention"] * 4},
                       {"model_type": "qwen3_next"}, {"indexer_kv_heads": 2}):  # fmt: skip
            with pytest.raises(FileFormatError, match=next(iter(fields))):
                Config.from_files(self.with_config(checkpoint, **fields))

    def test_nested_and_older_spellings(self, checkpoint: ModelFiles) -> None:
        expected = Config.from_files(checkpoint)
        nested = {"model_type": "qwen4_exp", "text_config": checkpoint.config, "image_token_id": 9}
        config = Config.from_files(replace(checkpoint, config=nested))
        assert config.ngram is not None and config.ngram.image_token == 9
        assert replace(config, ngram=expected.ngram) == expected
        rope = checkpoint.config["rope_parameters"]
        older = self.with_config(
            checkpoint,
            rope_parameters=...,
            rope_theta=rope["rope_theta"],
            partial_rotary_factor=rope["partial_rotary_factor"],
            rope_scaling={"type": "mrope", "mrope_section": rope["mrope_section"]},
            layer_types=...,
            full_attention_interval=4,
            eos_token_id=1011,
        )
        assert Config.from_files(older) == expected

    def test_yarn(self, checkpoint: ModelFiles) -> None:
        rope = checkpoint.config["rope_parameters"] | {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "beta_fast": 16,
        }  # fmt: skip
        scaling = Config.from_files(self.with_config(checkpoint, rope_parameters=rope)).rope_scaling
        assert scaling is not None and (scaling.factor, scaling.beta_fast, scaling.beta_slow) == (4.0, 16.0, 1.0)
        assert scaling.attention_factor == pytest.approx(yarn_magnitude(4.0))
        rope["attention_factor"] = 1.25
        scaling = Config.from_files(self.with_config(checkpoint, rope_parameters=rope)).rope_scaling
        assert scaling is not None and scaling.attention_factor == pytest.approx(1.25)

    def test_hash_constants_without_their_tensors(self, checkpoint: ModelFiles) -> None:
        tensors = {name: t for name, t in checkpoint.tensors.items() if t.type.name != "I64"}
        assert len(tensors) == len(checkpoint.tensors) - 3
        assert Config.from_files(replace(checkpoint, tensors=tensors)) == Config.from_files(checkpoint)
