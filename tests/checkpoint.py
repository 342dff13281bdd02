"""The inverse of arch.hf_tensors: a Hugging Face checkpoint from a GGUF, so that one tiny file yields both forms.

Written from the mapping table of the converter, not from Jubako's own conversion, which it tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from jubako.files import ModelFiles

HYPER = {
    "norm": "hc_norm",
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}


def write_checkpoint(
    files: ModelFiles, directory: Path, root: str = "model.", fused_experts: bool = False, shards: int = 4
) -> Path:
    """A directory with model.safetensors and config.json holding the same network as the GGUF `files`."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = _Inverse(files, root, fused_experts, shards).run()
    save_file(tensors, directory / "model.safetensors")
    config = huggingface_config(files.metadata)
    if root == "model.language_model.":
        config = {"model_type": "qwen4_exp", "text_config": config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def huggingface_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """config.json for the sizes in GGUF metadata."""

    def field(key: str) -> Any:
        value = metadata["qwen4exp." + key]
        return value.tolist() if hasattr(value, "tolist") else value

    draft = metadata.get("qwen4exp.nextn_predict_layers", 0)
    layers = field("block_count") - draft
    return {
        "model_type": "qwen4_exp_text",
        "hidden_act": "silu",
        "output_gate_type": "sigmoid",
        "norm_topk_prob": True,
        "num_hidden_layers": layers,
        "mtp_num_hidden_layers": draft,
        "layer_types": ["linear_attention" if r else "full_attention" for r in field("attention.recurrent_layers")],
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": field("embedding_length"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": field("rope.freq_base"),
            "partial_rotary_factor": field("rope.dimension_count") / field("attention.key_length"),
            "mrope_section": field("rope.dimension_sections")[:3],
        },
        "linear_conv_kernel_dim": field("ssm.conv_kernel"),
        "linear_key_head_dim": field("ssm.state_size"),
        "linear_value_head_dim": field("ssm.state_size"),
        "linear_num_key_heads": field("ssm.group_count"),
        "linear_num_value_heads": field("ssm.time_step_rank"),
        "num_experts": field("expert_count"),
        "num_experts_per_tok": field("expert_used_count"),
        "moe_intermediate_size": field("expert_feed_forward_length"),
        "shared_expert_intermediate_size": field("expert_shared_feed_forward_length"),
        "hc_count": field("hyper_connection.count"),
        "hc_lowrank": field("hyper_connection.low_rank"),
        "indexer_n_heads": field("attention.indexer.head_count"),
        "indexer_kv_heads": 1,
        "indexer_head_dim": field("attention.indexer.key_length"),
        "indexer_budget": field("attention.indexer.top_k"),
        "indexer_compress_ratio": max(field("attention.compress_ratios")),
        "ple_layer_ids": [layer + 1 for layer in field("ple.layers")],
        "ple_embed_dim": field("embedding_length_per_layer_input") * len(field("ple.head_offsets")),
        "ple_conv_kernel_size": field("ple.conv_kernel"),
        "ngram_size": field("ple.ngram_size"),
        "heads_per_ngram": field("ple.heads_per_ngram"),
        "ngram_vocab_size_base": min(field("ple.head_vocab_sizes")) - 1,
        "seed": 1234,
        "eos_token_id": [field("ple.eos_token_id"), 7],
    }


class _Inverse:
    def __init__(self, files: ModelFiles, root: str, fused_experts: bool, shards: int) -> None:
        self.files = files
        self.root = root
        self.fused_experts = fused_experts
        self.shards = shards
        self.out: dict[str, torch.Tensor] = {}
        meta = {key.removeprefix("qwen4exp."): value for key, value in files.metadata.items()}
        self.layers = meta["block_count"] - meta.get("nextn_predict_layers", 0)
        self.recurrent = [bool(flag) for flag in meta["attention.recurrent_layers"]]
        self.key_heads, self.value_heads = meta["ssm.group_count"], meta["ssm.time_step_rank"]
        self.dim, self.experts = meta["ssm.state_size"], meta["expert_count"]
        self.ngram_layer = int(meta["ple.layers"][0])
        self.meta = meta

    def get(self, name: str) -> torch.Tensor:
        """Matrices in the type they had; norms and the like stay float32, so that nothing is rounded."""
        stored = self.files.tensors[name]
        values = stored.float32()
        return values.bfloat16() if stored.type.name == "BF16" else values

    def run(self) -> dict[str, torch.Tensor]:
        root = self.root
        self.out[root + "embed_tokens.weight"] = self.get("token_embd.weight")
        self.out["lm_head.weight"] = self.get("output.weight")
        self.hyper("output_hc", root + "hyper_connection_mixer")
        for layer, recurrent in enumerate(self.recurrent):
            self.layer(f"blk.{layer}.", f"{root}layers.{layer}.", recurrent)
        self.ngram(f"blk.{self.ngram_layer}.", f"{root}layers.{self.ngram_layer}.ple.")
        if self.meta.get("nextn_predict_layers"):
            self.draft(f"blk.{self.layers}.")
        return {name: tensor.contiguous() for name, tensor in self.out.items()}

    def hyper(self, source: str, target: str) -> None:
        for short, long in HYPER.items():
            if f"{source}_{short}.weight" in self.files.tensors:
                values = self.get(f"{source}_{short}.weight")
                self.out[f"{target}.{long}.weight"] = values - 1 if short == "norm" else values

    def layer(self, source: str, target: str, recurrent: bool) -> None:
        self.hyper(source + "hc_attn", target + "attn_hyper_connection")
        self.hyper(source + "hc_ffn", target + "mlp_hyper_connection")
        (self.gdn if recurrent else self.attention)(source, target)
        mlp = target + "mlp."
        self.out[mlp + "gate.weight"] = self.get(source + "ffn_gate_inp.weight")
        self.out[mlp + "shared_expert_gate.weight"] = self.get(source + "ffn_gate_inp_shexp.weight").view(1, -1)
        parts = {}
        for name in ("gate", "up", "down"):
            self.out[f"{mlp}shared_expert.{name}_proj.weight"] = self.get(f"{source}ffn_{name}_shexp.weight")
            parts[name] = self.get(f"{source}ffn_{name}_exps.weight")
        if self.fused_experts:
            self.out[mlp + "experts.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
            self.out[mlp + "experts.down_proj"] = parts["down"]
            return
        for expert in range(self.experts):
            for name, values in parts.items():
                self.out[f"{mlp}experts.{expert}.{name}_proj.weight"] = values[expert]

    def to_heads(self, values: torch.Tensor, width: int, axis: int = 0) -> torch.Tensor:
        """V heads from GGUF order to Hugging Face order: v there lies at key_heads * (v % r) + v // r here."""
        per_key = self.value_heads // self.key_heads
        order = [self.key_heads * (v % per_key) + v // per_key for v in range(self.value_heads)]
        index = torch.tensor([j * width + i for j in order for i in range(width)])
        return values.index_select(axis, index)

    def gdn(self, source: str, target: str) -> None:
        target += "linear_attn."
        keys = 2 * self.key_heads * self.dim
        for name, long in (("attn_qkv", "in_proj_qkv"), ("ssm_conv1d", "conv1d")):
            values = self.get(f"{source}{name}.weight")
            values = torch.cat([values[:keys], self.to_heads(values[keys:], self.dim)])
            self.out[f"{target}{long}.weight"] = values[:, None] if name == "ssm_conv1d" else values
        self.out[target + "in_proj_z.weight"] = self.to_heads(self.get(source + "attn_gate.weight"), self.dim)
        self.out[target + "in_proj_b.weight"] = self.to_heads(self.get(source + "ssm_beta.weight"), 1)
        self.out[target + "in_proj_a.weight"] = self.to_heads(self.get(source + "ssm_alpha.weight"), 1)
        self.out[target + "A_log"] = self.to_heads(self.get(source + "ssm_a"), 1).neg().log()
        self.out[target + "dt_bias"] = self.to_heads(self.get(source + "ssm_dt.bias"), 1)
        self.out[target + "norm.weight"] = self.get(source + "ssm_norm.weight")
        self.out[target + "out_proj.weight"] = self.to_heads(self.get(source + "ssm_out.weight"), self.dim, axis=1)

    def attention(self, source: str, target: str) -> None:
        target += "self_attn."
        for name, long in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
            self.out[f"{target}{long}_proj.weight"] = self.get(f"{source}attn_{name}.weight")
        index = [self.get(f"{source}indexer.{name}_proj.weight") for name in ("q", "k")]
        self.out[target + "indexer.index_qk_proj.weight"] = torch.cat(index)
        for name in ("q", "k"):
            self.out[f"{target}{name}_norm.weight"] = self.get(f"{source}attn_{name}_norm.weight") - 1
            self.out[f"{target}indexer.{name}_layernorm.weight"] = self.get(f"{source}indexer.{name}_norm.weight") - 1

    def ngram(self, source: str, target: str) -> None:
        self.out[target + "key_proj.weight"] = self.get(source + "ple_key.weight")
        self.out[target + "value_proj.weight"] = self.get(source + "ple_value.weight")
        self.out[target + "conv1d.weight"] = self.get(source + "ple_conv1d.weight")[:, None]
        for name in ("key", "query", "conv"):
            self.out[f"{target}norm_{name}.weight"] = self.get(f"{source}ple_norm_{name}.weight") - 1
        target += "ple_embedding."
        for shard, rows in enumerate(self.get("per_layer_token_embd.weight").chunk(self.shards)):
            self.out[f"{target}ngram_embedding.shard_{shard}.weight"] = rows
        for name, key in (
            ("layer_multipliers", "ple.layer_multipliers"),
            ("ngram_heads_offsets", "ple.head_offsets"),
            ("ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
        ):
            self.out[target + name] = torch.tensor([int(value) for value in self.meta[key]])

    def draft(self, source: str) -> None:
        self.layer(source, "mtp.layers.0.", recurrent=False)
        joined = self.get(source + "nextn.eh_proj.weight")
        self.out["mtp.fc_embedding.weight"], self.out["mtp.fc_hidden.weight"] = joined.chunk(2, dim=1)
        self.out["mtp.pre_fc_norm_embedding.weight"] = self.get(source + "nextn.enorm.weight") - 1
        self.out["mtp.pre_fc_norm_hidden.weight"] = self.get(source + "nextn.hnorm.weight") - 1
        self.hyper(source + "nextn.hc_head", "mtp.hyper_connection_mixer")
