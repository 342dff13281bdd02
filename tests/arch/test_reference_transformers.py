"""The reference against the official implementation on networks of random geometry, through a saved checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from jubako.arch.reference import Reference
from jubako.arch.weights import load_network
from jubako.files import open_model

EOS = 5
COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "output_gate_type": "sigmoid",
    "indexer_kv_heads": 1,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "max_position_embeddings": 512,
    "make_ngram_vocab_size_divisible_by": 8,
}
L, A = "linear_attention", "full_attention"
GEOMETRIES: dict[str, dict[str, Any]] = {
    # two streams, bigrams only, one K head, attention before the n-gram layer, blocks of 3
    "small": {
        "vocab_size": 131, "hidden_size": 96, "num_hidden_layers": 5, "layer_types": [L, A, L, L, A],
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2],
        },
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
        "hc_count": 2, "hc_lowrank": 7, "ple_layer_ids": [3], "ple_embed_dim": 20, "ple_conv_kernel_size": 4,
        "ngram_size": 2, "heads_per_ngram": 2, "ngram_vocab_size_base": 31, "split_ngram_parts": 1,
        "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 24, "indexer_compress_ratio": 3,
    },
    # three streams, four-grams, as many K/V heads as heads, blocks of 8, context extended by YaRN
    "yarn": {
        "vocab_size": 77, "hidden_size": 60, "num_hidden_layers": 4, "layer_types": [L, L, A, L],
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 40,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e5, "partial_rotary_factor": 0.25, "mrope_section": [2, 2, 1],
            "factor": 4.0, "original_max_position_embeddings": 128,
        },
        "linear_conv_kernel_dim": 3, "linear_key_head_dim": 12, "linear_value_head_dim": 12,
        "linear_num_key_heads": 3, "linear_num_value_heads": 9,
        "num_experts": 16, "num_experts_per_tok": 5, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 6,
        "hc_count": 3, "hc_lowrank": 11, "ple_layer_ids": [1], "ple_embed_dim": 36, "ple_conv_kernel_size": 2,
        "ngram_size": 4, "heads_per_ngram": 3, "ngram_vocab_size_base": 97, "split_ngram_parts": 2,
        "indexer_n_heads": 3, "indexer_head_dim": 10, "indexer_budget": 16, "indexer_compress_ratio": 8,
    },
    # five streams, no n-gram table, embeddings tied to the output, every expert used, blocks of 2, attention first
    "tied": {
        "vocab_size": 50, "hidden_size": 33, "num_hidden_layers": 3, "layer_types": [A, L, A],
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 18, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1 / 3, "mrope_section": [1, 1, 1],
        },
        "linear_conv_kernel_dim": 5, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 8,
        "num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 17, "shared_expert_intermediate_size": 9,
        "hc_count": 5, "hc_lowrank": 3, "ple_layer_ids": None,
        "indexer_n_heads": 1, "indexer_head_dim": 6, "indexer_budget": 10, "indexer_compress_ratio": 2,
    },
}  # fmt: skip


def randomise(model: Qwen4ExpForCausalLM, seed: int) -> None:
    """Every weight away from its neutral start: norms, gates, convolutions and decays all matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("A_log"):
            weight.data = torch.rand(weight.shape, generator=generator) * 3 - 1.5
        elif weight.dim() == 1:
            weight.data = noise * 0.3 + (1.0 if name.endswith("linear_attn.norm.weight") else 0.0)
        elif "conv1d" in name:
            weight.data = noise * 0.5
        else:
            weight.data = noise * (1.0 if "embed" in name else 1.5 * weight.shape[-1] ** -0.5)


def lower_block_wins(x: torch.Tensor, k: int, dim: int = -1) -> Any:
    """torch.topk with a stated order where values tie."""
    return torch.return_types.topk(part.narrow(dim, 0, k) for part in x.sort(dim=dim, descending=True, stable=True))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_logits_equal_the_official_ones(geometry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = list(GEOMETRIES).index(geometry)
    config = Qwen4ExpTextConfig(**COMMON, **GEOMETRIES[geometry], attn_implementation="eager")
    config._experts_implementation = "eager"
    model = Qwen4ExpForCausalLM(config)
    model.float().eval()
    randomise(model, seed)
    if GEOMETRIES[geometry].get("tie_word_embeddings"):
        model.tie_weights()
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(seed).integers(0, model.config.vocab_size, 90)
    ids[[0, 30, 31, 33, 60]] = EOS

    monkeypatch.setattr(torch.Tensor, "topk", lower_block_wins)
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0]
    monkeypatch.undo()

    network = load_network(open_model(tmp_path))
    assert network.unused == []
    assert (network.output is network.embed) == bool(GEOMETRIES[geometry].get("tie_word_embeddings"))
    reference = Reference(network)
    scale = float(expected.abs().max())
    logits = reference.logits(ids)
    assert float((logits - expected).abs().max()) <= 1e-4 * scale
    state = reference.new_state()
    steps = torch.cat([reference.forward(ids[:40], state)] + [reference.forward([token], state) for token in ids[40:]])
    assert float((steps - expected).abs().max()) <= 1e-4 * scale
