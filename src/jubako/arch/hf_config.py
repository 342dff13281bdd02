"""config.json of a Hugging Face checkpoint as the GGUF metadata that `Config` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FileFormatError
from .config import yarn_magnitude
from .metadata import Metadata
from .ngram import hash_multipliers, head_table

if TYPE_CHECKING:
    from ..files import ModelFiles

ROOTS = ("model.language_model.", "model.", "")  # before the trunk's names, in the order tried


def metadata(files: ModelFiles) -> dict[str, Any]:
    """config.json as the GGUF keys that `Config` reads; errors name the field of config.json."""
    source = f"{files.paths[0]} config.json"
    outer = files.config or {}
    inner = outer.get("text_config", outer)
    if not isinstance(inner, Mapping):
        raise FileFormatError(f"{source}: text_config is not an object")
    kind = str(inner.get("model_type", outer.get("model_type", "")))
    if not kind.startswith("qwen4_exp"):
        raise FileFormatError(f"{source}: model_type is {kind!r}; Jubako runs qwen4_exp networks")
    config = Metadata(inner, source)
    eps = config.real("rms_norm_eps", 0.0, 1.0)
    for key, wanted in {"hidden_act": "silu", "output_gate_type": "sigmoid"}.items():
        if config.text(key) != wanted:
            raise config.refuse(key, config.text(key), f"only {wanted} is supported")
    for key, required in {"attention_bias": False, "norm_topk_prob": True}.items():
        if bool(inner.get(key, required)) != required:
            raise config.refuse(key, inner[key], f"only {required} is supported")

    layers = config.whole("num_hidden_layers", 1, 4096)
    draft = config.whole("mtp_num_hidden_layers", 0, 1, default=0)
    recurrent = _recurrent(config, layers)
    head_dim = config.whole("head_dim")
    fields: dict[str, Any] = {
        "block_count": layers + draft,
        "nextn_predict_layers": draft,
        "attention.recurrent_layers": recurrent,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "ssm.inner_size": config.whole("linear_num_value_heads") * config.whole("linear_value_head_dim"),
    }
    for key, name in {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "hyper_connection.count": "hc_count",
        "hyper_connection.low_rank": "hc_lowrank",
    }.items():
        fields[key] = config.whole(name)
    if config.get("linear_value_head_dim") != config.get("linear_key_head_dim"):
        raise config.refuse("linear_value_head_dim", config.get("linear_value_head_dim"), "key and value must agree")
    fields |= _rope(config, inner, head_dim) | _indexer(config, inner, recurrent, draft) | _ngram(config, inner, files)
    general = {"general.architecture": "qwen4exp", "general.name": Path(files.paths[0]).stem}
    return general | {f"qwen4exp.{key}": value for key, value in fields.items()}


def _recurrent(config: Metadata, layers: int) -> list[bool]:
    kinds = config.values.get("layer_types")
    if kinds is None:
        interval = config.whole("full_attention_interval", default=4)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    known = {"linear_attention": True, "full_attention": False, "indexed_attention": False}
    known["qwen_sparse_attention"] = False
    if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in known for kind in kinds):
        raise config.refuse("layer_types", kinds, f"{layers} of {', '.join(known)} were expected")
    return [known[kind] for kind in kinds]


def _rope(config: Metadata, inner: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """RoPE fields, from rope_parameters (transformers 5) or rope_theta with rope_scaling (older)."""
    merged = {"rope_theta": inner.get("rope_theta"), "partial_rotary_factor": inner.get("partial_rotary_factor")}
    for key in ("rope_scaling", "rope_parameters"):
        part = inner.get(key) or {}
        if not isinstance(part, Mapping):
            raise config.refuse(key, part, "it must be an object")
        merged |= part
    rope = Metadata({key: value for key, value in merged.items() if value is not None}, config.source, "")
    kind = rope.text("rope_type", rope.text("type", "default"))
    fields: dict[str, Any] = {
        "rope.freq_base": rope.get("rope_theta"),
        "rope.dimension_count": int(head_dim * rope.real("partial_rotary_factor", 0.0, 1.0, default=1.0)),
    }
    if "mrope_section" in rope:
        fields["rope.dimension_sections"] = [*rope.wholes("mrope_section"), 0]
    if kind in ("default", "mrope"):
        return fields
    factor = rope.real("factor", 1.0, 1024.0)
    fields |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "yarn":
        fields["rope.scaling.original_context_length"] = rope.whole("original_max_position_embeddings")
        if "attention_factor" in rope:
            fields["rope.scaling.attn_factor"] = rope.real("attention_factor", 1e-3, 1e3) / yarn_magnitude(factor)
        elif {"mscale", "mscale_all_dim"} & set(rope.values):
            raise rope.refuse("mscale", merged.get("mscale"), "only attention_factor is supported")
        for key in ("beta_fast", "beta_slow"):
            if key in rope:
                fields["rope.scaling.yarn_" + key] = rope.get(key)
    return fields


def _indexer(config: Metadata, inner: Mapping[str, Any], recurrent: list[bool], draft: int) -> dict[str, Any]:
    if inner.get("indexer_compress_ratio") is None:
        return {"attention.compress_ratios": [0] * (len(recurrent) + draft)}
    ratio = config.whole("indexer_compress_ratio", 1, 4096)
    if config.whole("indexer_kv_heads") != 1:
        raise config.refuse("indexer_kv_heads", inner["indexer_kv_heads"], "only one is supported")
    return {
        "attention.compress_ratios": [0 if gdn else ratio for gdn in recurrent] + [ratio] * draft,
        "attention.indexer.head_count": config.whole("indexer_n_heads"),
        "attention.indexer.key_length": config.whole("indexer_head_dim"),
        "attention.indexer.top_k": config.whole("indexer_budget"),
    }


def _ngram(config: Metadata, inner: Mapping[str, Any], files: ModelFiles) -> dict[str, Any]:
    if not inner.get("ple_layer_ids"):
        return {}
    layers = [layer - 1 for layer in config.wholes("ple_layer_ids", 1)]
    size, per_ngram = config.whole("ngram_size", 2, 8), config.whole("heads_per_ngram", 1, 64)
    heads = (size - 1) * per_ngram
    width = config.whole("hidden_size" if inner.get("ple_embed_dim") is None else "ple_embed_dim")
    if width % heads:
        raise config.refuse("ple_embed_dim", width, f"it must be a multiple of the {heads} hash heads")
    eos = inner.get("eos_token_id")
    fields: dict[str, Any] = {
        "ple.layers": layers,
        "ple.ngram_size": size,
        "ple.heads_per_ngram": per_ngram,
        "ple.conv_kernel": config.whole("ple_conv_kernel_size"),
        "ple.eos_token_id": eos[0] if isinstance(eos, list) and eos else config.get("eos_token_id"),
        "embedding_length_per_layer_input": width // heads,
    }
    image = (files.config or {}).get("image_token_id")
    if image is not None:
        fields["ple.image_token_id"] = image
    stored = {}
    for name, tensor in files.tensors.items():
        if ".ple_embedding." in name and not name.endswith(".weight"):
            stored[name.rsplit(".", 1)[1]] = tensor.integers().reshape(-1).tolist()
    if {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"} <= stored.keys():
        fields["ple.layer_multipliers"] = stored["layer_multipliers"]
        fields["ple.head_vocab_sizes"] = stored["ngram_heads_vocab_sizes"]
        fields["ple.head_offsets"] = stored["ngram_heads_offsets"]
    else:
        fields["ple.layer_multipliers"] = hash_multipliers(
            config.whole("vocab_size"), size, config.whole("seed", 0, default=1234)
        )
        sizes, offsets = head_table(config.whole("ngram_vocab_size_base", high=1 << 30), heads)
        fields["ple.head_vocab_sizes"], fields["ple.head_offsets"] = sizes, offsets
    return fields
