"""`CpuOps`: see `jubako.ops.Ops` for what each operation does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _cpu
from ...arch import weights as arch
from ...arch.ngram import ngram_row_ids
from ...errors import MachineError
from .kv import KvPool
from .state import CpuState, new_state
from .weights import Attention, Experts, Gdn, Indexer, Layer, Ngram, Weight, prepare

Array = NDArray[Any]


class CpuOps:
    """The operations on one network, on all given threads (None: the physical cores this process may use).

    Owns nothing large: weights stay where the file is mapped. The thread pool belongs to the process.
    """

    def __init__(self, network: arch.Network, threads: int | None = None) -> None:
        if not _cpu.isa_supported("avx2"):
            raise MachineError("this processor lacks AVX2; the CPU kernels need it")
        _cpu.set_threads(threads or _cpu.default_threads())
        self.config = network.config
        self.weights = prepare(network)

    def new_state(self, context: int, kv_bits: int = 8, pool: KvPool | None = None) -> CpuState:
        return new_state(self.weights, context, kv_bits, pool)

    def begin(self, parts: Sequence[tuple[Sequence[int], CpuState]]) -> None:
        """Nothing: the file is mapped."""

    def embed(self, weight: Weight, ids: Sequence[int] | Array) -> Array:
        return _cpu.decode_rows(weight, np.ascontiguousarray(ids, dtype=np.int64))

    def spread(self, x: Array) -> Array:
        return np.repeat(x[:, None, :], self.config.streams, axis=1)

    def ngram_rows(self, weights: Ngram, ids: Sequence[int] | Array, history: Sequence[int]) -> Array:
        rows = ngram_row_ids(self.config, ids, history)
        return _cpu.decode_rows(weights.table, rows.reshape(-1)).reshape(len(rows), -1)

    def ngram_inject(self, weights: Ngram, streams: Array, embedding: Array, state: _cpu.NgramState) -> None:
        weights.kernel.inject(streams, embedding, state)

    def hyper_mix(self, streams: Array, mix: _cpu.HyperMix) -> tuple[Array, Array | None]:
        return mix.mix(streams)

    def hyper_combine(self, streams: Array, inject: Array, out: Array) -> None:
        _cpu.hyper_combine(streams, inject, out)

    def rms_norm(self, x: Array, gamma: Array) -> Array:
        return _cpu.rms_norm(x, gamma, self.config.eps)

    def linear(self, weight: Weight, x: Array) -> Array:
        return _cpu.linear(weight, x)

    def linear_many(self, weights: Sequence[Weight], x: Array) -> list[Array]:
        return _cpu.linear_many(weights, x)

    def gdn(
        self,
        weights: Gdn,
        qkv: Array,
        z: Array,
        beta: Array,
        alpha: Array,
        state: _cpu.GdnState,
        revocable: bool = False,
    ) -> Array:
        return weights.kernel.run(qkv, z, beta, alpha, state, revocable)

    def attention_prepare(
        self, weights: Attention, q: Array, k: Array, v: Array, cache: _cpu.AttentionState, position: int
    ) -> tuple[Array, Array]:
        return weights.kernel.prepare(q, k, v, cache, position)

    def attention_store(
        self, weights: Attention, k: Array, v: Array, cache: _cpu.AttentionState, position: int
    ) -> None:
        nothing = np.zeros((len(k), 2 * self.config.heads * self.config.head_dim), np.float32)
        weights.kernel.prepare(nothing, k, v, cache, position)

    def index_update(self, indexer: Indexer, raw_k: Array, cache: _cpu.AttentionState, position: int) -> None:
        indexer.kernel.update(raw_k, cache, position)

    def index_select(
        self, indexer: Indexer, q: Array, cache: _cpu.AttentionState, position: int
    ) -> tuple[Array, Array]:
        return indexer.kernel.select(q, cache, position)

    def sparse_attention(
        self,
        q: Array,
        gate: Array,
        cache: _cpu.AttentionState,
        blocks: Array | None,
        counts: Array | None,
        position: int,
    ) -> Array:
        return _cpu.sparse_attention(q, gate, cache, blocks, counts, position)

    def route(self, router_logits: Array, k: int) -> tuple[Array, Array]:
        return _cpu.route(router_logits, k)

    def foresee(self, layer: Layer, streams: Array) -> None:
        """Nothing: the file is mapped."""

    def experts(self, weights: Experts, x: Array, ids: Array, route_weights: Array) -> Array:
        w = weights
        return _cpu.experts(
            w.gate, w.up, w.down, x, ids, route_weights, w.shared_router, w.shared_gate, w.shared_up, w.shared_down
        )

    def head(
        self, mix: _cpu.HyperMix, output: Weight, streams: Array, rows: Sequence[int] | slice | None = None
    ) -> Array:
        wanted = streams if rows is None else np.ascontiguousarray(streams[rows])
        return _cpu.linear(output, mix.mix(wanted)[0])

    def argmax(self, logits: Array) -> Array:
        return _cpu.argmax(logits)
