"""The whole network in plain float32 torch: the specification, and the twin every kernel is held against.

Read it in this order: `model` (the network as a page of calls), `hyper`, `gdn`, `attention`, `moe`, `ngram`, `basics`.
T counts tokens, S residual streams, H hidden elements. Functions take and give float32 tensors; weights may be leaves
of a `network.Network` (decoded on demand) or plain torch tensors. States are updated in place.
"""

from .attention import AttentionCache, attention_prepare, index_select, index_update, sparse_attention
from .basics import embed, linear, linear_many, rms_norm, rope
from .gdn import GdnState, gdn
from .hyper import hyper_combine, hyper_mix
from .model import Reference, State, head
from .moe import experts, route
from .ngram import ngram_inject

__all__ = [
    "AttentionCache",
    "GdnState",
    "Reference",
    "State",
    "attention_prepare",
    "embed",
    "experts",
    "gdn",
    "head",
    "hyper_combine",
    "hyper_mix",
    "index_select",
    "index_update",
    "linear",
    "linear_many",
    "ngram_inject",
    "rms_norm",
    "rope",
    "route",
    "sparse_attention",
]
