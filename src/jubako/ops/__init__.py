"""The engine's instruction set: what a device must be able to do so that the network is a page of calls to it.

T counts the tokens of a call, S residual streams, H hidden elements. Arrays are the device's own kind, float32 and
contiguous unless it says otherwise; weights and states are the device's too (`Ops.weights`, `Ops.new_state`).
Every operation has a twin of the same name in `arch.reference`, and tests that hold the two together.

What a token gets never depends on the other tokens of the call, on how a prompt is cut into calls, or on the number of
threads: reductions have one written order. That is what makes drafts and batching lossless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..arch.config import Config

Array = Any  # the device's arrays
Weights = Any  # a field of the network's prepared weights
State = Any


class Ops(Protocol):
    """One device's operations on one network."""

    config: Config
    weights: Any
    """The network with the fields of `arch.weights.Network`, its leaves ready for this device."""

    def new_state(self, context: int, kv_bits: int = 8) -> State:
        """The empty state of a sequence of up to `context` tokens. Memory is committed as it fills."""

    def begin(self, parts: Sequence[tuple[Sequence[int], State]]) -> None:
        """Ids are about to be read at the end of their states: what they need from a disk may be fetched."""

    def embed(self, weight: Weights, ids: Sequence[int] | np.ndarray) -> Array:
        """Rows `ids` [T] of a matrix of any block type, decoded: [T, columns]."""

    def spread(self, x: Array) -> Array:
        """Every stream starts as the embedding: x [T, H] to streams [T, S, H]."""

    def ngram_rows(self, weights: Weights, ids: Sequence[int] | np.ndarray, history: Sequence[int]) -> Array:
        """The hashed n-gram rows of the tokens, one after the other: [T, E]. history: the tokens before ids[0]."""

    def ngram_inject(self, weights: Weights, streams: Array, embedding: Array, state: State) -> None:
        """Add what `ngram_rows` gave to streams [T, S, H], in place; the state's convolution moves on."""

    def hyper_mix(self, streams: Array, mix: Weights) -> tuple[Array, Array | None]:
        """What a block reads of streams [T, S, H]: mixed [T, H]; and how it writes back: inject [T, S] or None."""

    def hyper_combine(self, streams: Array, inject: Array, out: Array) -> None:
        """Add a block's output [T, H] to streams [T, S, H], in place, weighted by inject [T, S]."""

    def rms_norm(self, x: Array, gamma: Array) -> Array:
        """x [T, n] over its root mean square, times gamma [n]. Only the draft layer needs it alone."""

    def linear(self, weight: Weights, x: Array) -> Array:
        """x [T, K] times weight [N, K] transposed: [T, N]."""

    def linear_many(self, weights: Sequence[Weights], x: Array) -> list[Array]:
        """Several products of one input, which is quantised once."""

    def gdn(
        self,
        weights: Weights,
        qkv: Array,
        z: Array,
        beta: Array,
        alpha: Array,
        state: State,
        revocable: bool = False,
    ) -> Array:
        """A gated delta net from its raw projections to [T, heads*dim], which `weights.out` still has to project.

        revocable: at most 16 tokens, and the sequence's `keep` may take the last of them back.
        """

    def attention_prepare(
        self, weights: Weights, q: Array, k: Array, v: Array, cache: State, position: int
    ) -> tuple[Array, Array]:
        """Norm and rotate the raw projections of the tokens from `position` on; append keys and values to the cache.

        Gives queries [T, heads, D] and gate [T, heads*D].
        """

    def attention_store(self, weights: Weights, k: Array, v: Array, cache: State, position: int) -> None:
        """`attention_prepare` for tokens that ask nothing: their keys and values are appended, that is all."""

    def index_update(self, indexer: Weights, raw_k: Array, cache: State, position: int) -> None:
        """Take the raw index keys [T, D] of the tokens from `position` on; pool the blocks that become complete."""

    def index_select(self, indexer: Weights, q: Array, cache: State, position: int) -> tuple[Array, Array]:
        """The blocks that queries [T, heads*D] choose: int32 [T, budget], rising, -1 beyond counts int32 [T]."""

    def sparse_attention(
        self, q: Array, gate: Array, cache: State, blocks: Array | None, counts: Array | None, position: int
    ) -> Array:
        """Attention over the chosen blocks and the tail, gated: [T, heads*D]. blocks None or a count below 0: all."""

    def route(self, router_logits: Array, k: int) -> tuple[Array, Array]:
        """The k likeliest experts of logits [T, E]: ids int32 [T, k], likeliest first, and weights that sum to 1."""

    def foresee(self, layer: Weights, streams: Array) -> None:
        """Told before `experts`: the layer that comes next, and the streams as they are, to guess what it asks for."""

    def experts(self, weights: Weights, x: Array, ids: Array, route_weights: Array) -> Array:
        """The chosen experts' weighted sum by rank, then the shared expert's gated output: [T, H]."""

    def head(self, mix: Weights, output: Weights, streams: Array, rows: Sequence[int] | slice | None = None) -> Array:
        """Logits [rows, vocabulary] of the wanted rows of streams [T, S, H]; None is all of them."""

    def argmax(self, logits: Array) -> Array:
        """The likeliest token of each row [T, vocabulary]: int64 [T]; the lowest id on ties."""
