"""The network as fields: what each part is made of, in the GGUF convention.

Matrices are [rows, columns] = [outputs, inputs], experts [experts, rows, columns]; norm gammas already include the +1,
`Gdn.a` is -exp(A_log), and V heads are r-major: V head j uses K head j mod key_heads. S streams, H hidden elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import Config
from .tensor import Tensor


@dataclass(frozen=True)
class HyperMix:
    """A hyper-connection. norm [S*H] · down [rank, S*H] · up [S*H, rank] · inject [S, S*H], None in a head's mixer."""

    norm: Tensor
    down: Tensor
    up: Tensor
    inject: Tensor | None


@dataclass(frozen=True)
class Gdn:
    """A gated delta net, V = heads * dim, C channels of q, k and v together.

    qkv [C, H] · gate [V, H] · conv [C, kernel] · dt_bias, a [heads] · beta, alpha [heads, H] · norm [dim] · out [H, V]
    """

    qkv: Tensor
    gate: Tensor
    conv: Tensor
    dt_bias: Tensor
    a: Tensor
    beta: Tensor
    alpha: Tensor
    norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class Indexer:
    """What chooses blocks. q [heads*dim, H] · k [dim, H] · norms [dim]."""

    q: Tensor
    k: Tensor
    q_norm: Tensor
    k_norm: Tensor


@dataclass(frozen=True)
class Attention:
    """q [heads*2*dim, H]: per head the query's rows, then its gate's · k, v [kv_heads*dim, H] · output [H, heads*dim].

    ratio: tokens per index block; 0, and no indexer, where attention is dense.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    q_norm: Tensor
    k_norm: Tensor
    indexer: Indexer | None
    ratio: int


@dataclass(frozen=True)
class Experts:
    """router [experts, H] · gate, up [experts, F, H] · down [experts, H, F'] · shared_router [1, H] · shared_*.

    F' may exceed F where a file padded the columns to whole blocks: the activations there count as zero.
    """

    router: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    shared_router: Tensor
    shared_gate: Tensor
    shared_up: Tensor
    shared_down: Tensor


@dataclass(frozen=True)
class Ngram:
    """key [S*H, E] · value [H, E] · norms [S*H] · conv [S*H, kernel] · table [rows, width]; E = heads * width."""

    key: Tensor
    value: Tensor
    norm_key: Tensor
    norm_query: Tensor
    norm_conv: Tensor
    conv: Tensor
    table: Tensor


@dataclass(frozen=True)
class Layer:
    """One layer; `ngram` is set in the one layer that injects n-gram embeddings."""

    index: int
    hc_attn: HyperMix
    mixer: Gdn | Attention
    hc_ffn: HyperMix
    experts: Experts
    ngram: Ngram | None


@dataclass(frozen=True)
class Draft:
    """The draft (MTP) layer. embed and output are None where it uses the trunk's. fc_* [H, H] · norm_hidden [S*H]."""

    embed: Tensor | None
    output: Tensor | None
    fc_embedding: Tensor
    fc_hidden: Tensor
    norm_embedding: Tensor
    norm_hidden: Tensor
    layer: Layer
    head_mix: HyperMix


@dataclass(frozen=True)
class Network:
    """All of it. `unused` names every tensor of the files that plays no part."""

    config: Config
    embed: Tensor
    output: Tensor
    head_mix: HyperMix
    layers: list[Layer]
    draft: Draft | None
    unused: list[str]
