"""Hugging Face checkpoints in the GGUF convention: config.json as GGUF metadata, tensors under GGUF names.

What differs: norms are stored minus one (except the GDN's), V heads are grouped by K head instead of r-major,
A_log stands for a = -exp(A_log), and a few tensors are joined or split. Matrices keep their stored bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FileFormatError, MissingTensorError
from ..files.tensors import StoredTensor
from ..quant.types import BlockType, block_type
from .metadata import Metadata
from .ngram import hash_multipliers, head_table

if TYPE_CHECKING:
    from ..files import ModelFiles
    from .config import Config

ROOTS = ("model.language_model.", "model.", "")
EMBEDDING_NAMES = tuple(root + "embed_tokens.weight" for root in ROOTS)
DRAFT_ROOTS = ("mtp.", "model.mtp.", "model.language_model.mtp.")
HYPER = {
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}


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
    result: dict[str, Any] = {
        "general.architecture": "qwen4exp",
        "general.name": Path(files.paths[0]).stem,
    }
    fields = {
        "block_count": layers + draft,
        "nextn_predict_layers": draft,
        "attention.recurrent_layers": recurrent,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "ssm.inner_size": config.whole("linear_num_value_heads") * config.whole("linear_value_head_dim"),
    }
    for key, name in {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
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
        fields[key] = config.get(name)
    if config.get("linear_value_head_dim") != config.get("linear_key_head_dim"):
        raise config.refuse("linear_value_head_dim", config.get("linear_value_head_dim"), "key and value must agree")
    fields |= _rope(config, inner, head_dim) | _indexer(config, inner, recurrent, draft) | _ngram(config, inner, files)
    result |= {f"qwen4exp.{key}": value for key, value in fields.items()}
    return result


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
        from .config import yarn_magnitude

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
        "attention.indexer.head_count": config.get("indexer_n_heads"),
        "attention.indexer.key_length": config.get("indexer_head_dim"),
        "attention.indexer.top_k": config.get("indexer_budget"),
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
        "ple.conv_kernel": config.get("ple_conv_kernel_size"),
        "ple.eos_token_id": eos[0] if isinstance(eos, list) and eos else config.get("eos_token_id"),
        "embedding_length_per_layer_input": width // heads,
    }
    image = (files.config or {}).get("image_token_id")
    if image is not None:
        fields["ple.image_token_id"] = image
    stored = {}
    for name, tensor in files.tensors.items():
        if ".ple_embedding." in name and not name.endswith(".weight"):
            stored[name.rsplit(".", 1)[1]] = _integers(tensor)
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


def _integers(tensor: StoredTensor) -> list[int]:
    """An int64 tensor; it must never pass through floats."""
    if tensor.type.name != "I64":
        raise FileFormatError(f"{tensor.file}: {tensor.name} is stored as {tensor.type.name}; I64 was expected")
    values: list[int] = np.ascontiguousarray(tensor.data).view("<i8").reshape(-1).tolist()
    return values


def tensors(files: ModelFiles, config: Config) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint under GGUF names and in the GGUF convention; unknown ones keep their name."""
    return _Conversion(files, config).run()


@dataclass
class _Conversion:
    """One pass over a checkpoint: what is taken leaves `left`, what lacks is gathered in `missing`."""

    files: ModelFiles
    config: Config

    def __post_init__(self) -> None:
        self.left = dict(self.files.tensors)
        self.out: dict[str, StoredTensor] = {}
        self.missing: list[str] = []
        config = self.config
        per_key = config.gdn_value_heads // config.gdn_key_heads
        # GGUF place j = r * key_heads + k holds Hugging Face head k * per_key + r.
        self.value_heads = np.arange(config.gdn_value_heads).reshape(config.gdn_key_heads, per_key).T.reshape(-1)

    def run(self) -> dict[str, StoredTensor]:
        root = next((root for root in ROOTS if root + "embed_tokens.weight" in self.left), ROOTS[0])
        self.copy(root + "embed_tokens", "token_embd")
        self.copy("lm_head", "output", optional=True)
        self.hyper(root + "hyper_connection_mixer", "output_hc")
        for layer in range(self.config.layers):
            self.layer(f"{root}layers.{layer}.", f"blk.{layer}.", self.config.recurrent[layer])
        if self.config.draft_layers:
            self.draft()
        if self.missing:
            raise MissingTensorError(f"{self.files.paths[0]}: missing tensors: {', '.join(self.missing)}")
        return self.out | self.left

    def take(self, name: str, optional: bool = False) -> StoredTensor | None:
        found = self.left.pop(name, None)
        if found is None and not optional:
            self.missing.append(name)
        return found

    def put(self, name: str, type: BlockType, values: np.ndarray, like: StoredTensor) -> None:
        """Store `values` (bytes, rows last) as the GGUF tensor `name` that came from `like`."""
        shape = (*values.shape[:-1], values.shape[-1] // type.bytes * type.weights)
        self.out[name] = StoredTensor(name, type, shape, values, like.file, like.offset)

    def put_float32(self, name: str, values: np.ndarray, like: StoredTensor) -> None:
        values = np.ascontiguousarray(values, dtype=np.float32)
        self.put(name, block_type("F32"), values.view(np.uint8), like)

    def copy(self, source: str, target: str, optional: bool = False) -> None:
        stored = self.take(source + ".weight", optional)
        if stored is not None:
            self.put(target + ".weight", stored.type, stored.data, stored)

    def rows(self, source: str, target: str, order: np.ndarray) -> None:
        """Copy with its rows in the order given."""
        stored = self.take(source)
        if stored is not None:
            self.check_rows(stored, len(order))
            data = stored.data.reshape(len(order), -1)
            self.put(target, stored.type, data[order], stored)

    def check_rows(self, stored: StoredTensor, rows: int) -> None:
        if not stored.shape or stored.shape[0] != rows:
            raise FileFormatError(f"{stored.file}: {stored.name} has shape {stored.shape}; {rows} rows were expected")

    def norm(self, source: str, target: str) -> None:
        """A norm whose weight is stored minus one."""
        stored = self.take(source + ".weight")
        if stored is not None:
            self.put_float32(target + ".weight", stored.float32().numpy() + np.float32(1), stored)

    def hyper(self, source: str, target: str) -> None:
        self.norm(source + ".hc_norm", target + "_norm")
        for name, long in HYPER.items():
            if name != "inject" or not source.endswith("mixer"):
                self.copy(f"{source}.{long}", f"{target}_{name}")

    def layer(self, source: str, target: str, recurrent: bool) -> None:
        self.hyper(source + "attn_hyper_connection", target + "hc_attn")
        self.hyper(source + "mlp_hyper_connection", target + "hc_ffn")
        if recurrent:
            self.gdn(source + "linear_attn.", target)
        else:
            self.attention(source + "self_attn.", target)
        self.experts(source + "mlp.", target)
        if self.config.ngram is not None and target == f"blk.{self.config.ngram.layer}.":
            self.ngram(source + "ple.", target)

    def gdn(self, source: str, target: str) -> None:
        config = self.config
        heads, dim = self.value_heads, config.gdn_dim
        inner = (heads[:, None] * dim + np.arange(dim)).reshape(-1)
        keys = 2 * config.gdn_key_heads * dim
        channels = np.concatenate([np.arange(keys), keys + inner])
        self.rows(source + "in_proj_qkv.weight", target + "attn_qkv.weight", channels)
        self.rows(source + "in_proj_z.weight", target + "attn_gate.weight", inner)
        self.rows(source + "in_proj_b.weight", target + "ssm_beta.weight", heads)
        self.rows(source + "in_proj_a.weight", target + "ssm_alpha.weight", heads)
        self.rows(source + "conv1d.weight", target + "ssm_conv1d.weight", channels)
        for name, bare in (("A_log", "ssm_a"), ("dt_bias", "ssm_dt.bias")):
            stored = self.take(source + name)
            if stored is not None:
                self.check_rows(stored, len(heads))
                values = stored.float32().numpy()[heads]
                self.put_float32(target + bare, -np.exp(values) if name == "A_log" else values, stored)
        stored = self.take(source + "norm.weight")
        if stored is not None:
            self.put_float32(target + "ssm_norm.weight", stored.float32().numpy(), stored)
        stored = self.take(source + "out_proj.weight")
        if stored is not None:
            if len(stored.shape) != 2 or stored.shape[1] != len(inner):
                raise FileFormatError(f"{stored.file}: {stored.name} has shape {stored.shape}; {len(inner)} columns")
            size = stored.type.bytes
            data = stored.data.reshape(stored.shape[0], len(inner), size)[:, inner]
            self.put(target + "ssm_out.weight", stored.type, data.reshape(stored.shape[0], -1), stored)

    def attention(self, source: str, target: str) -> None:
        for name in ("q", "k", "v"):
            self.copy(f"{source}{name}_proj", f"{target}attn_{name}")
        self.copy(source + "o_proj", target + "attn_output")
        self.norm(source + "q_norm", target + "attn_q_norm")
        self.norm(source + "k_norm", target + "attn_k_norm")
        indexer, index_dim = source + "indexer.", self.config.index_dim
        if index_dim == 0 or indexer + "index_qk_proj.weight" not in self.left:
            return
        stored = self.take(indexer + "index_qk_proj.weight")
        assert stored is not None
        queries = self.config.index_heads * index_dim
        self.check_rows(stored, queries + index_dim)
        self.put(target + "indexer.q_proj.weight", stored.type, stored.data[:queries], stored)
        self.put(target + "indexer.k_proj.weight", stored.type, stored.data[queries:], stored)
        self.norm(indexer + "q_layernorm", target + "indexer.q_norm")
        self.norm(indexer + "k_layernorm", target + "indexer.k_norm")

    def experts(self, source: str, target: str) -> None:
        self.copy(source + "gate", target + "ffn_gate_inp")
        self.copy(source + "shared_expert_gate", target + "ffn_gate_inp_shexp")
        for name in ("gate", "up", "down"):
            self.copy(f"{source}shared_expert.{name}_proj", f"{target}ffn_{name}_shexp")
        fused = self.take(source + "experts.gate_up_proj", optional=True)
        if fused is None:
            for name in ("gate", "up", "down"):
                self.stack([f"{source}experts.{e}.{name}_proj.weight" for e in range(self.config.experts)],
                           f"{target}ffn_{name}_exps.weight")
            return
        self.put(target + "ffn_gate_up_exps.weight", fused.type, fused.data, fused)
        down = self.take(source + "experts.down_proj")
        if down is not None:
            self.put(target + "ffn_down_exps.weight", down.type, down.data, down)

    def stack(self, sources: list[str], target: str) -> None:
        """Per-expert matrices as one tensor [experts, rows, columns]."""
        parts = [part for part in map(self.take, sources) if part is not None]
        if len(parts) == len(sources):
            self.put(target, parts[0].type, np.stack([part.data for part in self.alike(parts)]), parts[0])

    def alike(self, parts: list[StoredTensor]) -> list[StoredTensor]:
        """Parts of one tensor must share type and row length."""
        first = parts[0]
        for part in parts:
            if part.type != first.type or part.shape[1:] != first.shape[1:]:
                raise FileFormatError(
                    f"{part.file}: {part.name} is {part.type.name} {part.shape} but {first.name} is "
                    f"{first.type.name} {first.shape}"
                )
        return parts

    def ngram(self, source: str, target: str) -> None:
        self.copy(source + "key_proj", target + "ple_key")
        self.copy(source + "value_proj", target + "ple_value")
        for name in ("key", "query", "conv"):
            self.norm(f"{source}norm_{name}", f"{target}ple_norm_{name}")
        self.rows(source + "conv1d.weight", target + "ple_conv1d.weight",
                  np.arange(self.config.streams * self.config.hidden))
        embedding = source + "ple_embedding."
        for name in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"):
            self.take(embedding + name, optional=True)
        table = embedding + "ngram_embedding."
        whole = self.take(table + "weight", optional=True)
        if whole is not None:
            self.put("per_layer_token_embd.weight", whole.type, whole.data, whole)
            return
        pattern = re.compile(re.escape(table) + r"shard_\d+\.weight")
        shards = [name for name in self.left if pattern.fullmatch(name)]
        names = [f"{table}shard_{number}.weight" for number in range(max(len(shards), 1))]
        parts = [part for part in map(self.take, names) if part is not None]
        if len(parts) == len(names):
            data = np.concatenate([part.data for part in self.alike(parts)])
            self.put("per_layer_token_embd.weight", parts[0].type, data, parts[0])

    def draft(self) -> None:
        root = next((root for root in DRAFT_ROOTS if root + "fc_embedding.weight" in self.left), None)
        if root is None:
            return
        target = f"blk.{self.config.layers}."
        self.layer(root + "layers.0.", target, recurrent=False)
        self.copy(root + "fc_embedding", target + "nextn.fc_embd")
        self.copy(root + "fc_hidden", target + "nextn.fc_hidden")
        self.norm(root + "pre_fc_norm_embedding", target + "nextn.enorm")
        self.norm(root + "pre_fc_norm_hidden", target + "nextn.hnorm")
        self.hyper(root + "hyper_connection_mixer", target + "nextn.hc_head")
