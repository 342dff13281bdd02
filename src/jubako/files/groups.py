"""Which part of the network a tensor belongs to, by its GGUF or Hugging Face name. For reports, not for loading."""

from __future__ import annotations

import re

# In the order of a report. The first pattern that is found in a name decides; a draft layer's tensors are all one part.
PARTS: dict[str, str] = {
    "vision": r"^model\.visual\.|^v\.|^mm\.",
    "n-gram table": r"^per_layer_token_embd\.|ngram_embedding\.",
    "n-gram layer": r"\.ple_|\.ple\.",
    "embedding": r"^token_embd\.|embed_tokens\.",
    "output head": r"^output\.|^lm_head\.",
    "hyper-connections": r"hc_|hyper_connection",
    "indexer": r"\.indexer\.",
    "shared expert": r"_shexp|shared_expert",
    "router": r"\.ffn_gate_inp\.|\.mlp\.gate\.",
    "experts, gate and up": r"\.ffn_(gate|up|gate_up)_exps|\.experts\.(\d+\.)?(gate|up|gate_up)_proj",
    "experts, down": r"\.ffn_down_exps|\.experts\.(\d+\.)?down_proj",
    "gated delta net": r"\.ssm_|\.attn_(qkv|gate)\.|\.linear_attn\.",
    "attention": r"\.attn_|\.self_attn\.",
    "draft layer": r"\.nextn\.|^mtp\.",
    "other": r"",
}
_COMPILED = {part: re.compile(pattern) for part, pattern in PARTS.items()}
_LAYER = re.compile(r"^blk\.(\d{1,9})\.")
_ORDER = [
    "embedding",
    "hyper-connections",
    "gated delta net",
    "attention",
    "indexer",
    "router",
    "shared expert",
    "experts, gate and up",
    "experts, down",
    "n-gram layer",
    "n-gram table",
    "output head",
    "draft layer",
    "vision",
    "other",
]


def part_of(name: str, trunk_layers: int | None = None) -> str:
    """The part of a tensor. `trunk_layers`: blocks from this number on are the draft layer."""
    layer = _LAYER.match(name)
    if name.startswith("mtp.") or (layer and trunk_layers is not None and int(layer[1]) >= trunk_layers):
        return "draft layer"
    return next(part for part, pattern in _COMPILED.items() if pattern.search(name))


def report_order(part: str) -> int:
    return _ORDER.index(part)
