"""`StoredOps`: `CpuOps` of a network whose experts a store holds or reads, and whose tables are read by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import _cpu
from ...arch import weights as arch
from ...arch.ngram import ngram_row_ids
from .ops import Array, CpuOps
from .weights import Experts, Layer, Ngram, Weight

SURE_TOKENS = 16  # what so many tokens may ask for next is read in any case: one of them will
MOST_EXPECTED = 48  # experts read ahead for the next layer
TRIAL = 256  # experts read ahead before it is judged whether that pays
WORTHWHILE = 0.3  # share of them that must be asked for


class StoredOps(CpuOps):
    """store: the experts of the layers in their order, the draft layer's last. tables: by id() of their tensor."""

    def __init__(
        self, network: arch.Network, threads: int | None, store: _cpu.ExpertStore, tables: dict[int, _cpu.RowTable]
    ) -> None:
        super().__init__(network, threads)
        self.store = store
        own = [(self.weights.embed, network.embed)]
        own += [
            (mine.ngram.table, theirs.ngram.table)
            for mine, theirs in zip(self.weights.layers, network.layers, strict=True)
            if mine.ngram is not None and theirs.ngram is not None
        ]
        self._tables = {id(weight): tables[id(tensor)] for weight, tensor in own if id(tensor) in tables}
        layers = [*self.weights.layers, *([self.weights.draft.layer] if self.weights.draft else [])]
        self._number = {id(layer.experts): number for number, layer in enumerate(layers)}
        self._rows: dict[bytes, _cpu.RowReads] = {}
        self._guess: Callable[[], None] | None = None

    def begin(self, parts: Sequence[tuple[Sequence[int], Any]]) -> None:
        self.store.step()
        self._rows.clear()
        for layer in self.weights.layers:
            if layer.ngram is not None and id(layer.ngram.table) in self._tables:
                for ids, state in parts:
                    rows = self._ngram_rows(ids, state.history)
                    self._rows[rows.tobytes()] = self._tables[id(layer.ngram.table)].begin(rows)

    def embed(self, weight: Weight, ids: Sequence[int] | Array) -> Array:
        table = self._tables.get(id(weight))
        if table is None:
            return super().embed(weight, ids)
        return _decoded(weight, table, table.begin(np.ascontiguousarray(ids, dtype=np.int64)))

    def ngram_rows(self, weights: Ngram, ids: Sequence[int] | Array, history: Sequence[int]) -> Array:
        table = self._tables.get(id(weights.table))
        if table is None:
            return super().ngram_rows(weights, ids, history)
        rows = self._ngram_rows(ids, history)
        reads = self._rows.pop(rows.tobytes(), None) or table.begin(rows)
        return _decoded(weights.table, table, reads).reshape(len(ids), -1)

    def foresee(self, layer: Layer, streams: Array) -> None:
        number = self._number[id(layer.experts)]
        _, missed, expected, in_vain = self.store.counts
        if self.store.whole or missed == 0 or (expected > TRIAL and in_vain > (1 - WORTHWHILE) * expected):
            return

        def guess() -> None:
            mixed, _ = self.hyper_mix(streams, layer.hc_ffn)
            ids, _ = self.route(self.linear(layer.experts.router, mixed), self.config.experts_used)
            found, uses = np.unique(ids, return_counts=True)
            absent = self.store.addresses[number, found, 0] == 0
            likely = found[absent][np.argsort(-uses[absent], kind="stable")][:MOST_EXPECTED]
            self.store.expect(number, np.ascontiguousarray(likely, np.int32), len(streams) > SURE_TOKENS)

        self._guess = guess

    def experts(self, weights: Experts, x: Array, ids: Array, route_weights: Array) -> Array:
        w, guess = weights, self._guess
        self._guess = None
        return self.store.experts(
            self._number[id(w)], w.gate, w.up, w.down, x, ids, route_weights,
            w.shared_router, w.shared_gate, w.shared_up, w.shared_down, guess,
        )  # fmt: skip

    def _ngram_rows(self, ids: Sequence[int] | Array, history: Sequence[int]) -> Array:
        return ngram_row_ids(self.config, ids, history).reshape(-1)


def _decoded(weight: Weight, table: _cpu.RowTable, reads: _cpu.RowReads) -> Array:
    """The rows as float32 [n, columns]."""
    raw = reads.take(table.row_bytes)
    return _cpu.decode_rows(_cpu.Weight(raw, weight.type), np.arange(len(raw)))
