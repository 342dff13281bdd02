"""The published network's sizes, some of them changed as a synthetic file wants them, and their GGUF metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arch.config import Config, NgramConfig
from ..arch.ngram import hash_multipliers, head_table
from ..arch.read_config import ARCHITECTURE
from ..errors import RequestError
from .vocabulary import SpecialTokens

INTERVAL = 4  # every fourth layer is attention
NGRAM_LAYER = 1


def network_config(
    layers: int = 48,
    experts: int = 512,
    vocab: int = 248_320,
    context: int = 262_144,
    ngram_rows: int = 320_000_000,
    draft: bool = False,
    **sizes: int,
) -> Config:
    """The published geometry (model.md of the network: 2560 wide, 24 heads of 256 …) with these sizes.

    ngram_rows: rows of the n-gram table, about: each of its 16 heads takes the next prime from a sixteenth of it on.
    sizes: any other integer field of Config, for tests on narrow networks. Raises RequestError for impossible sizes.
    """
    _check(layers=(layers, 2, 4096), experts=(experts, 10 if "experts_used" not in sizes else 1, 65_536))
    _check(vocab=(vocab, SpecialTokens.smallest_vocab, 1 << 24), context=(context, 16, 1 << 30))
    _check(ngram_rows=(ngram_rows, 64, 1 << 30))
    values: dict[str, Any] = {
        "hidden": 2560,
        "eps": float(np.float32(1e-6)),
        "heads": 24,
        "kv_heads": 2,
        "head_dim": 256,
        "rope_dims": 64,
        "rope_base": 1e7,
        "index_heads": 4,
        "index_dim": 128,
        "index_budget": 2048,
        "conv_kernel": 4,
        "gdn_key_heads": 16,
        "gdn_value_heads": 48,
        "gdn_dim": 128,
        "experts_used": 10,
        "expert_size": 640,
        "shared_expert_size": 640,
        "streams": 4,
        "hyper_rank": 320,
    } | sizes
    recurrent = tuple((layer + 1) % INTERVAL != 0 for layer in range(layers))
    pairs = values["rope_dims"] // 2
    third = -(-pairs // 3)
    return Config(
        name=f"synthetic {layers} layers, {experts} experts",
        vocabulary=vocab,
        layers=layers,
        draft_layers=int(draft),
        context_length=context,
        recurrent=recurrent,
        rope_sections=(third, min(third, pairs - third), max(pairs - 2 * third, 0), 0),
        rope_scaling=None,
        compress_ratios=tuple(0 if gdn else 4 for gdn in recurrent) + (4,) * draft,
        experts=experts,
        ngram=_ngram(vocab, values["hidden"], ngram_rows),
        **values,
    )


def _check(**values: tuple[int, int, int]) -> None:
    for name, (value, low, high) in values.items():
        if not low <= value <= high:
            raise RequestError(f"{name} is {value}; it must lie between {low} and {high}")


def _ngram(vocab: int, hidden: int, rows: int) -> NgramConfig:
    size, per_ngram = 3, 8
    heads = (size - 1) * per_ngram
    if hidden % heads:
        raise RequestError(f"hidden is {hidden}; it must be a multiple of the {heads} n-gram heads")
    sizes, offsets = head_table(rows // heads, heads)
    special = SpecialTokens(vocab)
    return NgramConfig(
        layer=NGRAM_LAYER,
        size=size,
        heads_per_ngram=per_ngram,
        width=hidden // heads,
        conv_kernel=4,
        eos=special.end_of_text,
        image_token=special.image,
        multipliers=hash_multipliers(vocab, size),
        head_sizes=sizes,
        head_offsets=offsets,
    )


def table_rows(config: Config) -> int:
    """Rows the n-gram table is stored with: padded to a multiple of 128."""
    assert config.ngram is not None
    return -(-config.ngram.rows // 128) * 128


def metadata(config: Config) -> dict[str, Any]:
    """The `general.*` and `qwen4exp.*` keys of a GGUF file of this network.

    Whole numbers are Python ints (written as u32), u64 and i32 arrays numpy arrays of that type.
    """
    ngram = config.ngram
    assert ngram is not None
    sizes: dict[str, Any] = {
        "block_count": config.layers + config.draft_layers,
        "context_length": config.context_length,
        "embedding_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.eps,
        "attention.indexer.head_count": config.index_heads,
        "attention.indexer.key_length": config.index_dim,
        "attention.indexer.top_k": config.index_budget,
        "attention.compress_ratios": np.array(config.compress_ratios, np.int32),
        "rope.dimension_count": config.rope_dims,
        "rope.freq_base": config.rope_base,
        "rope.dimension_sections": np.array(config.rope_sections, np.int32),
        "full_attention_interval": INTERVAL,
        "expert_count": config.experts,
        "expert_used_count": config.experts_used,
        "expert_feed_forward_length": config.expert_size,
        "expert_shared_feed_forward_length": config.shared_expert_size,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.gdn_dim,
        "ssm.group_count": config.gdn_key_heads,
        "ssm.time_step_rank": config.gdn_value_heads,
        "ssm.inner_size": config.gdn_inner,
        "hyper_connection.count": config.streams,
        "hyper_connection.low_rank": config.hyper_rank,
        "embedding_length_per_layer_input": ngram.width,
        "ple.layers": np.array([ngram.layer], np.int32),
        "ple.ngram_size": ngram.size,
        "ple.heads_per_ngram": ngram.heads_per_ngram,
        "ple.conv_kernel": ngram.conv_kernel,
        "ple.eos_token_id": ngram.eos,
        "ple.image_token_id": ngram.image_token,
        "ple.layer_multipliers": np.array(ngram.multipliers, np.uint64),
        "ple.head_vocab_sizes": np.array(ngram.head_sizes, np.uint64),
        "ple.head_offsets": np.array(ngram.head_offsets, np.uint64),
    }
    if config.draft_layers:
        sizes |= {"nextn_predict_layers": config.draft_layers, "nextn_shared_target_tensors": True}
    return {
        "general.architecture": ARCHITECTURE,
        "general.type": "model",
        "general.name": config.name,
        "general.file_type": 7,
        "general.quantization_version": 2,
    } | {f"{ARCHITECTURE}.{key}": value for key, value in sizes.items()}
