"""The sizes of the small model."""

from __future__ import annotations

from dataclasses import replace

from jubako.arch.config import Config
from jubako.arch.ngram import head_table
from jubako.measure.geometry import network_config

VOCABULARY = 8192
TABLE_ROWS = 131_072
NAME = "Jubako Small"


def small_config() -> Config:
    """8 layers 256 wide, 32 experts, 30 M weights; blocks of 4, a budget of 512 tokens, contexts of 32,768."""
    config = network_config(
        layers=8,
        experts=32,
        vocab=VOCABULARY,
        context=32_768,
        ngram_rows=TABLE_ROWS,
        draft=True,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        rope_dims=16,
        index_heads=4,
        index_dim=64,
        index_budget=512,
        gdn_key_heads=4,
        gdn_value_heads=8,
        gdn_dim=64,
        experts_used=4,
        expert_size=64,
        shared_expert_size=256,
        hyper_rank=32,
    )
    assert config.ngram is not None
    per_ngram, width = 4, 32
    sizes, offsets = head_table(TABLE_ROWS // (2 * per_ngram), 2 * per_ngram)
    ngram = replace(config.ngram, heads_per_ngram=per_ngram, width=width, head_sizes=sizes, head_offsets=offsets)
    return replace(config, name=NAME, ngram=ngram)
