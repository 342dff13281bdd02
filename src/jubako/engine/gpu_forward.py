"""The network as a page of calls to the GPU's instruction set; `engine.forward` is the same page for other devices."""

from __future__ import annotations

from typing import Any

import torch

from ..ops.gpu.columns import Columns
from ..ops.gpu.ops import GpuOps
from ..ops.gpu.state import AttentionMemory, GdnMemory


def residual(ops: GpuOps, columns: Columns) -> torch.Tensor:
    """Read the tokens of `columns`: the streams [T, S, H] after the last layer, before the head's mixer."""
    streams = ops.spread(ops.embed(ops.weights.embed, columns))
    for layer, memory in zip(ops.weights.layers, ops.pool.layers, strict=False):  # the draft layer's comes after
        if layer.ngram is not None:
            ops.ngram_inject(layer.ngram, streams, columns)
        run_layer(ops, layer, streams, memory, columns)
    return streams


def run_layer(
    ops: GpuOps, layer: Any, streams: torch.Tensor, memory: GdnMemory | AttentionMemory, columns: Columns
) -> None:
    """One layer on streams [T, S, H], in place."""
    mixed, inject = ops.hyper_mix(streams, layer.hc_attn)
    if isinstance(memory, GdnMemory):
        ops.linear_combine(layer.mixer.out, ops.gdn(layer.mixer, mixed, memory, columns), streams, inject)
    else:
        ops.linear_combine(layer.mixer.output, ops.attention(layer.mixer, mixed, memory, columns), streams, inject)
    mixed, inject = ops.hyper_mix(streams, layer.hc_ffn, fine=False)
    ops.experts_combine(layer.experts, mixed, streams, inject)
