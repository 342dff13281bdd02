"""Sizes from metadata: every field read once, checked alone and against the others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import FileFormatError, MissingTensorError, RequestError
from . import hf_config
from .config import Config, NgramConfig, RopeScaling, yarn_magnitude
from .metadata import Metadata

if TYPE_CHECKING:
    from ..files import ModelFiles

ARCHITECTURE = "qwen4exp"
log = logging.getLogger(__name__)


def read_config(files: ModelFiles, compress_ratio: int | None) -> Config:
    """See `Config.from_files`."""
    values = files.metadata if files.kind == "gguf" else hf_config.metadata(files)
    source = str(files.paths[0])
    architecture = Metadata(values, source).text("general.architecture")
    if architecture != ARCHITECTURE:
        raise FileFormatError(
            f"{source}: general.architecture is {architecture!r:.50}; Jubako runs {ARCHITECTURE!r} networks"
        )
    meta = Metadata(values, source, ARCHITECTURE + ".")
    draft_layers = meta.whole("nextn_predict_layers", 0, 1, default=0)
    layers = meta.whole("block_count", 1 + draft_layers, 4096) - draft_layers
    recurrent = _recurrent(meta, layers)
    hidden = meta.whole("embedding_length", high=1 << 20)
    heads = meta.uniform("attention.head_count", 1 << 16)
    kv_heads = meta.uniform("attention.head_count_kv", 1 << 16)
    if heads % kv_heads:
        raise meta.refuse("attention.head_count", heads, f"it must be a multiple of the {kv_heads} key/value heads")
    head_dim = meta.whole("attention.key_length", 2, 1 << 16)
    if meta.whole("attention.value_length", 2, 1 << 16) != head_dim:
        raise meta.refuse("attention.value_length", meta.get("attention.value_length"), f"key_length is {head_dim}")

    dim = meta.whole("ssm.state_size", high=1 << 16)
    key_heads = meta.whole("ssm.group_count", high=1 << 16)
    value_heads = meta.whole("ssm.time_step_rank", high=1 << 16)
    if value_heads % key_heads:
        raise meta.refuse("ssm.time_step_rank", value_heads, f"it must be a multiple of the {key_heads} key heads")
    if meta.whole("ssm.inner_size") != value_heads * dim:
        raise meta.refuse("ssm.inner_size", meta.get("ssm.inner_size"), f"{value_heads} heads of {dim} were expected")

    experts = meta.whole("expert_count", high=1 << 16)
    vocab = _vocab(files)
    index_heads, index_dim, budget, ratios = _index(meta, files, recurrent, layers + draft_layers, compress_ratio)
    rope_dims = meta.whole("rope.dimension_count", 2, head_dim)
    if rope_dims % 2 or (index_dim and rope_dims > index_dim):
        raise meta.refuse("rope.dimension_count", rope_dims, f"it must be even and fit index heads of {index_dim}")
    return Config(
        name=Metadata(values, source).text("general.name", "unnamed"),
        vocabulary=vocab,
        hidden=hidden,
        layers=layers,
        draft_layers=draft_layers,
        context_length=meta.whole("context_length", high=1 << 30),
        eps=meta.real("attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        recurrent=recurrent,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dims=rope_dims,
        rope_base=meta.real("rope.freq_base", 1.0001, 1e15),
        rope_sections=meta.wholes("rope.dimension_sections", 0, 1 << 16)
        if "rope.dimension_sections" in meta
        else (rope_dims // 2, 0, 0, 0),
        rope_scaling=_rope_scaling(meta),
        compress_ratios=ratios,
        index_heads=index_heads,
        index_dim=index_dim,
        index_budget=budget,
        conv_kernel=meta.whole("ssm.conv_kernel", 2, 64),
        gdn_key_heads=key_heads,
        gdn_value_heads=value_heads,
        gdn_dim=dim,
        experts=experts,
        experts_used=meta.whole("expert_used_count", high=experts),
        expert_size=meta.uniform("expert_feed_forward_length", 1 << 20),
        shared_expert_size=meta.uniform("expert_shared_feed_forward_length", 1 << 20),
        streams=meta.whole("hyper_connection.count", 2, 64),
        hyper_rank=meta.whole("hyper_connection.low_rank", high=1 << 16),
        ngram=_ngram(meta, recurrent, vocab, files),
    )


def _vocab(files: ModelFiles) -> int:
    """Rows of the token embedding; the tokenizer may know fewer."""
    for name in ("token_embd.weight", *(root + "embed_tokens.weight" for root in hf_config.ROOTS)):
        if name in files.tensors and len(files.tensors[name].shape) == 2:
            return files.tensors[name].shape[0]
    name = "token_embd.weight" if files.kind == "gguf" else "model.embed_tokens.weight"
    raise MissingTensorError(f"{files.paths[0]}: the tensor {name} is missing or no matrix")


def _recurrent(meta: Metadata, layers: int) -> tuple[bool, ...]:
    if "attention.recurrent_layers" in meta:
        flags = meta.wholes("attention.recurrent_layers", 0, 1)
        if len(flags) < layers:
            raise meta.refuse("attention.recurrent_layers", flags, f"{layers} layers need an entry each")
        return tuple(bool(flag) for flag in flags[:layers])
    interval = meta.whole("full_attention_interval")
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


def _index(
    meta: Metadata, files: ModelFiles, recurrent: tuple[bool, ...], count: int, override: int | None
) -> tuple[int, int, int, tuple[int, ...]]:
    """Index heads, their width, the budget in tokens, and the block size of each of `count` layers."""
    if override is not None and not 1 <= override <= 4096:
        raise RequestError(f"compress_ratio is {override}; it must lie between 1 and 4096")
    stored = meta.wholes("attention.compress_ratios", 0, 4096) if "attention.compress_ratios" in meta else (0,)
    if len(stored) == 1:
        stored = stored * len(recurrent)
    if len(stored) < len(recurrent):
        raise meta.refuse("attention.compress_ratios", stored, f"{len(recurrent)} layers need an entry each")
    usual = max((ratio for ratio, gdn in zip(stored, recurrent, strict=False) if not gdn), default=0)
    ratios = []
    for layer in range(count):
        if layer < len(recurrent) and recurrent[layer]:
            ratios.append(0)
            continue
        ratio = stored[layer] if layer < len(stored) else usual
        if ratio == 0 and _has_indexer(files, layer):
            ratio = override or 0
            if ratio == 0:
                log.warning(
                    "%s: layer %d has indexer tensors but compress_ratios says 0: its attention runs dense; "
                    "give the block size (4 in the published network) to have it sparse",
                    meta.source,
                    layer,
                )
        ratios.append(ratio)
    if not any(ratios):
        return 0, 0, 0, tuple(ratios)
    budget = meta.whole("attention.indexer.top_k", high=1 << 18)
    for ratio in set(ratios) - {0}:
        if budget % ratio:
            raise meta.refuse("attention.indexer.top_k", budget, f"it must be a multiple of the block size {ratio}")
    heads = meta.whole("attention.indexer.head_count", high=1 << 10)
    return heads, meta.whole("attention.indexer.key_length", 2, 1 << 14), budget, tuple(ratios)


def _has_indexer(files: ModelFiles, layer: int) -> bool:
    return f"blk.{layer}.indexer.q_proj.weight" in files.tensors  # config.json states the block size itself


def _rope_scaling(meta: Metadata) -> RopeScaling | None:
    kind = meta.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise meta.refuse("rope.scaling.type", kind, "Jubako knows none, linear and yarn")
    factor = meta.real("rope.scaling.factor", 1.0, 1024.0)
    if kind == "linear":
        return RopeScaling(kind, factor, meta.whole("context_length"), 1.0)
    magnitude = meta.real("rope.scaling.attn_factor", 1e-3, 1e3, default=1.0) * yarn_magnitude(factor)
    return RopeScaling(
        kind,
        factor,
        original_context=meta.whole("rope.scaling.original_context_length", high=1 << 30),
        attention_factor=meta.real("rope.scaling.yarn_attn_factor", 1e-3, 1e3, default=1.0) * magnitude,
        beta_fast=meta.real("rope.scaling.yarn_beta_fast", 1e-3, 1e6, default=32.0),
        beta_slow=meta.real("rope.scaling.yarn_beta_slow", 1e-3, 1e6, default=1.0),
    )


def _ngram(meta: Metadata, recurrent: tuple[bool, ...], vocab: int, files: ModelFiles) -> NgramConfig | None:
    layers = meta.wholes("ple.layers", 0, len(recurrent) - 1) if _has_ngram(meta, files) else ()
    if not layers:
        return None
    if len(layers) != 1 or not recurrent[layers[0]]:
        raise meta.refuse("ple.layers", layers, "it must name exactly one layer, a recurrent one")
    size = meta.whole("ple.ngram_size", 2, 8)
    per_ngram = meta.whole("ple.heads_per_ngram", 1, 64)
    heads = (size - 1) * per_ngram
    if heads > 64:
        raise meta.refuse("ple.heads_per_ngram", per_ngram, f"{heads} heads are more than 64")
    multipliers = _exactly(meta, "ple.layer_multipliers", size, 1, (1 << 64) - 1)
    sizes = _exactly(meta, "ple.head_vocab_sizes", heads, 1, (1 << 31) - 1)
    offsets = _exactly(meta, "ple.head_offsets", heads, 0, (1 << 31) - 1)
    if max(offset + count for offset, count in zip(offsets, sizes, strict=True)) > (1 << 31) - 1:
        raise meta.refuse("ple.head_offsets", offsets, "offset plus size exceeds 2^31 - 1 rows")
    eos = meta.whole("ple.eos_token_id", 0, vocab - 1)
    return NgramConfig(
        layer=layers[0],
        size=size,
        heads_per_ngram=per_ngram,
        width=meta.whole("embedding_length_per_layer_input", high=1 << 16),
        conv_kernel=meta.whole("ple.conv_kernel", 2, 64),
        eos=eos,
        image_token=meta.whole("ple.image_token_id", 0, vocab - 1, default=0) or eos,
        multipliers=multipliers,
        head_sizes=sizes,
        head_offsets=offsets,
    )


def _has_ngram(meta: Metadata, files: ModelFiles) -> bool:
    """A network without n-gram tensors needs no n-gram fields; one with them must say where they belong."""
    return "ple.layers" in meta or any("ple_" in name or name.startswith("per_layer") for name in files.tensors)


def _exactly(meta: Metadata, key: str, count: int, low: int, high: int) -> tuple[int, ...]:
    values = meta.wholes(key, low, high)
    if len(values) != count:
        raise meta.refuse(key, values, f"{count} entries were expected")
    return values
