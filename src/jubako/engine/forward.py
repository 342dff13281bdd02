"""The network as a page of calls to a device's instruction set; `arch.reference.model` is the same page in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import Array, Ops

Part = tuple[Sequence[int], Any]  # token ids, and the state at whose end they are read


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence's rows of a call: what the layer at work remembers of it, and the position of its first row."""

    rows: slice
    memory: Any
    position: int


def part_rows(parts: Sequence[Part]) -> list[slice]:
    """The rows of each part where all lie one after the other."""
    ends = np.cumsum([len(ids) for ids, _ in parts]).tolist()
    return [slice(end - len(ids), end) for end, (ids, _) in zip(ends, parts, strict=True)]


def residual(ops: Ops, parts: Sequence[Part], revocable: bool = False) -> Array:
    """Read each part's ids at the end of its state: the streams [T, S, H] after the last layer, for the head's mixer.

    revocable: the states' `keep` can take the last of these tokens back.
    """
    ops.begin(parts)
    for ids, state in parts:
        state.reserve(state.position + len(ids))
    rows = part_rows(parts)
    layers = ops.weights.layers
    streams = ops.spread(ops.embed(ops.weights.embed, [id for ids, _ in parts for id in ids]))
    for index, layer in enumerate(layers):
        if layer.ngram is not None:
            for (ids, state), own in zip(parts, rows, strict=True):
                embedding = ops.ngram_rows(layer.ngram, ids, state.history)
                ops.ngram_inject(layer.ngram, streams[own], embedding, state.ngram)
        pieces = [Piece(own, s.layers[index], s.position) for own, (_, s) in zip(rows, parts, strict=True)]
        run_layer(ops, layer, streams, pieces, revocable, layers[index + 1] if index + 1 < len(layers) else None)
    for ids, state in parts:
        state.advance(ids, revocable)
    return streams


def run_layer(
    ops: Ops, layer: Any, streams: Array, pieces: Sequence[Piece], revocable: bool = False, follower: Any = None
) -> None:
    """One layer on streams [T, S, H], in place. follower: the layer after it, if known."""
    mixed, inject = ops.hyper_mix(streams, layer.hc_attn)
    if hasattr(layer.mixer, "indexer"):
        out = _attention(ops, layer.mixer, mixed, pieces)
    else:
        out = _gdn(ops, layer.mixer, mixed, pieces, revocable)
    ops.hyper_combine(streams, inject, out)
    run_experts(ops, layer, streams, follower)


def run_experts(ops: Ops, layer: Any, streams: Array, follower: Any = None) -> None:
    """The second half of a layer on streams [T, S, H], in place."""
    mixed, inject = ops.hyper_mix(streams, layer.hc_ffn)
    ids, weights = ops.route(ops.linear(layer.experts.router, mixed), ops.config.experts_used)
    if follower is not None:
        ops.foresee(follower, streams)
    ops.hyper_combine(streams, inject, ops.experts(layer.experts, mixed, ids, weights))


def _gdn(ops: Ops, weights: Any, x: Array, pieces: Sequence[Piece], revocable: bool) -> Array:
    inputs = ops.linear_many(weights.projections, x)

    def run(piece: Piece) -> Array:
        qkv, z, beta, alpha = _rows(inputs, piece.rows)
        return ops.gdn(weights, qkv, z, beta, alpha, piece.memory, revocable)

    return ops.linear(weights.out, _by_piece(pieces, run))


def _attention(ops: Ops, weights: Any, x: Array, pieces: Sequence[Piece]) -> Array:
    inputs = ops.linear_many(weights.projections, x)

    def attend(piece: Piece) -> Array:
        q, k, v, *index = _rows(inputs, piece.rows)
        cache, position = piece.memory, piece.position
        queries, gate = ops.attention_prepare(weights, q, k, v, cache, position)
        blocks = counts = None
        if weights.indexer is not None:
            index_q, index_k = index
            ops.index_update(weights.indexer, index_k, cache, position)
            blocks, counts = ops.index_select(weights.indexer, index_q, cache, position)
        return ops.sparse_attention(queries, gate, cache, blocks, counts, position)

    return ops.linear(weights.output, _by_piece(pieces, attend))


def _rows(arrays: Sequence[Array], rows: slice) -> list[Array]:
    return [array[rows] for array in arrays]


def _by_piece(pieces: Sequence[Piece], work: Callable[[Piece], Array]) -> Array:
    """What `work` gives for each piece, one after the other."""
    results = [work(piece) for piece in pieces]
    return results[0] if len(results) == 1 else np.concatenate(results)
