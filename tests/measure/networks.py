"""A narrow network for tests: every part of the real one, and rows of gate and up that fit any block type."""

from jubako.arch.config import Config
from jubako.measure.geometry import network_config

NARROW = {
    "hidden": 512,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "rope_dims": 16,
    "index_heads": 2,
    "index_dim": 32,
    "index_budget": 64,
    "gdn_key_heads": 2,
    "gdn_value_heads": 6,
    "gdn_dim": 32,
    "experts_used": 3,
    "expert_size": 64,
    "shared_expert_size": 64,
    "hyper_rank": 64,
}


def narrow(
    layers: int = 4,
    experts: int = 16,
    vocab: int = 512,
    context: int = 4096,
    ngram_rows: int = 2000,
    draft: bool = False,
    **sizes: int,
) -> Config:
    """A network that the reference runs in a moment."""
    return network_config(layers, experts, vocab, context, ngram_rows, draft, **(NARROW | sizes))
