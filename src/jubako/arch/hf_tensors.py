"""Tensors of a Hugging Face checkpoint under GGUF names and in the GGUF convention.

What differs: norms are stored minus one (except the GDN's), V heads are grouped by K head instead of r-major,
A_log stands for a = -exp(A_log), and a few tensors are joined or split. Matrices keep their stored bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import psutil

from ..errors import FileFormatError, MachineError
from ..files.tensors import StoredTensor
from ..quant.types import BlockType, block_type
from .hf_config import ROOTS
from .metadata import missing_tensors

if TYPE_CHECKING:
    from ..files import ModelFiles
    from .config import Config

DRAFT_ROOTS = ("mtp.", "model.mtp.", "model.language_model.mtp.")
HYPER = {
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}


def tensors(files: ModelFiles, config: Config) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint under GGUF names and in the GGUF convention; unknown ones keep their name."""
    return _Conversion(files, config).run()


class _Conversion:
    """One pass over a checkpoint: what is taken leaves `left`, what lacks is gathered in `missing`."""

    def __init__(self, files: ModelFiles, config: Config) -> None:
        self.source = str(files.paths[0])
        self.config = config
        self.left = dict(files.tensors)
        self.out: dict[str, StoredTensor] = {}
        self.missing: list[str] = []
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
            raise missing_tensors(self.source, self.missing)
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
            self.put_float32(target + ".weight", stored.decoded() + np.float32(1), stored)

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
                values = stored.decoded()[heads]
                self.put_float32(target + bare, -np.exp(values) if name == "A_log" else values, stored)
        stored = self.take(source + "norm.weight")
        if stored is not None:
            self.put_float32(target + "ssm_norm.weight", stored.decoded(), stored)
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
        if index_dim == 0 or not any(name.startswith(indexer) for name in self.left):
            return  # dense
        stored = self.take(indexer + "index_qk_proj.weight")
        if stored is not None:
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
                self.stack(
                    [f"{source}experts.{e}.{name}_proj.weight" for e in range(self.config.experts)],
                    f"{target}ffn_{name}_exps.weight",
                )
            return
        self.put(target + "ffn_gate_up_exps.weight", fused.type, fused.data, fused)
        down = self.take(source + "experts.down_proj")
        if down is not None:
            self.put(target + "ffn_down_exps.weight", down.type, down.data, down)

    def stack(self, sources: list[str], target: str) -> None:
        """Per-expert matrices as one tensor [experts, rows, columns]."""
        parts = [part for part in map(self.take, sources) if part is not None]
        if len(parts) == len(sources):
            self.put(target, parts[0].type, np.stack([part.data for part in _joinable(parts)]), parts[0])

    def ngram(self, source: str, target: str) -> None:
        self.copy(source + "key_proj", target + "ple_key")
        self.copy(source + "value_proj", target + "ple_value")
        for name in ("key", "query", "conv"):
            self.norm(f"{source}norm_{name}", f"{target}ple_norm_{name}")
        self.rows(
            source + "conv1d.weight", target + "ple_conv1d.weight", np.arange(self.config.streams * self.config.hidden)
        )
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
            data = np.concatenate([part.data for part in _joinable(parts)])
            self.put("per_layer_token_embd.weight", parts[0].type, data, parts[0])

    def draft(self) -> None:
        root = next((root for root in DRAFT_ROOTS if any(name.startswith(root) for name in self.left)), None)
        if root is None:
            return
        target = f"blk.{self.config.layers}."
        self.layer(root + "layers.0.", target, recurrent=False)
        self.copy(root + "fc_embedding", target + "nextn.fc_embd")
        self.copy(root + "fc_hidden", target + "nextn.fc_hidden")
        self.norm(root + "pre_fc_norm_embedding", target + "nextn.enorm")
        self.norm(root + "pre_fc_norm_hidden", target + "nextn.hnorm")
        self.hyper(root + "hyper_connection_mixer", target + "nextn.hc_head")


def _joinable(parts: list[StoredTensor]) -> list[StoredTensor]:
    """Parts that share type and row length and whose copy, made to join them, fits in memory."""
    first = parts[0]
    for part in parts:
        if part.type != first.type or part.shape[1:] != first.shape[1:]:
            raise FileFormatError(
                f"{part.file}: {part.name} is {part.type.name} {part.shape} but {first.name} is "
                f"{first.type.name} {first.shape}"
            )
    needed, free = sum(part.nbytes for part in parts), psutil.virtual_memory().available
    if len(parts) > 1 and needed > free:
        raise MachineError(
            f"{first.file}: joining the {len(parts)} parts of {first.name} takes {needed / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free; use a GGUF, which holds them joined"
        )
    return parts
