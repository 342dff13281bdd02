"""The network as a page of calls to a device's instruction set; `arch.reference.model` is the same page in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ops import Array, Ops


def forward(ops: Ops, ids: Sequence[int], state: Any, rows: slice | None) -> Array:
    """Read `ids` at the end of `state`: logits [rows, vocabulary] after the wanted ones (None: all)."""
    streams = residual(ops, ids, state)
    return ops.head(ops.weights.head_mix, ops.weights.output, streams, rows)


def residual(ops: Ops, ids: Sequence[int], state: Any) -> Array:
    """Read `ids` at the end of `state`: the streams [T, S, H] after the last layer, before the head's mixer."""
    streams = ops.spread(ops.embed(ops.weights.embed, ids))
    for layer, memory in zip(ops.weights.layers, state.layers, strict=True):
        if layer.ngram is not None:
            ops.ngram_inject(layer.ngram, streams, ops.ngram_rows(layer.ngram, ids, state.history), state.ngram)
        run_layer(ops, layer, streams, memory, state.position)
    state.advance(ids)
    return streams


def run_layer(ops: Ops, layer: Any, streams: Array, memory: Any, position: int) -> None:
    """One layer on streams [T, S, H], in place; its tokens stand at `position` and on."""
    mixed, inject = ops.hyper_mix(streams, layer.hc_attn)
    mixer = _attention if hasattr(layer.mixer, "indexer") else _gdn
    ops.hyper_combine(streams, inject, mixer(ops, layer.mixer, mixed, memory, position))

    mixed, inject = ops.hyper_mix(streams, layer.hc_ffn)
    ids, weights = ops.route(ops.linear(layer.experts.router, mixed), ops.config.experts_used)
    ops.hyper_combine(streams, inject, ops.experts(layer.experts, mixed, ids, weights))


def _gdn(ops: Ops, weights: Any, x: Array, memory: Any, position: int) -> Array:
    qkv, z, beta, alpha = ops.linear_many(weights.projections, x)
    return ops.linear(weights.out, ops.gdn(weights, qkv, z, beta, alpha, memory))


def _attention(ops: Ops, weights: Any, x: Array, cache: Any, position: int) -> Array:
    q, k, v, *index = ops.linear_many(weights.projections, x)
    queries, gate = ops.attention_prepare(weights, q, k, v, cache, position)
    blocks = counts = None
    if weights.indexer is not None:
        index_q, index_k = index
        ops.index_update(weights.indexer, index_k, cache, position)
        blocks, counts = ops.index_select(weights.indexer, index_q, cache, position)
    return ops.linear(weights.output, ops.sparse_attention(queries, gate, cache, blocks, counts, position))
