"""The network as a page of calls to the GPU's instruction set; `engine.forward` is the same page for other devices.

A block's last product is not added to the streams by itself: the mix before the next block does that on its way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import torch

from ...ops.gpu.columns import Columns
from ...ops.gpu.foresight import FIRST_LAYERS
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.state import AttentionMemory, GdnMemory

Mixed = tuple[Any, torch.Tensor | None]  # what a block reads, and how strongly each stream takes what it gives


def logits(ops: GpuOps, columns: Columns, out: torch.Tensor) -> Generator[bool, None, torch.Tensor]:
    """Read the tokens: streams [T, S, H] after the last layer, logits into out [T, vocabulary].

    Yields once, after the first layers: a graph of many kernels takes a while to launch.
    """
    if ops.before is not None and ops.before.logits is not None:
        return ops.before.logits(columns, out)
    streams = ops.start(columns)
    mixed: Mixed | None = None
    for index, given in enumerate(run_layers(ops, columns, streams, ops.weights.head_mix)):
        mixed = given
        if index + 1 == FIRST_LAYERS < len(ops.weights.layers):
            yield True
    mixed = mixed or ops.hyper_mix(streams, ops.weights.head_mix)
    ops.linear(ops.weights.output, mixed[0], out)
    return streams


def run_layers(
    ops: GpuOps, columns: Columns, streams: torch.Tensor, head_mix: Any | None = None
) -> Iterator[Mixed | None]:
    """This card's layers on streams [T, S, H], in place; after each, what comes next if the layer gave it.

    head_mix: the head's, where it is on this card and wanted.
    """
    layers = ops.weights.layers
    mixed: Mixed | None = None
    for index, layer in enumerate(layers):
        if layer.ngram is not None:
            ops.ngram_inject(layer.ngram, streams, columns)
        follower = layers[index + 1] if index + 1 < len(layers) else None
        mix = head_mix if follower is None else None if follower.ngram is not None else follower.hc_attn
        mixed = run_layer(ops, layer, streams, ops.pool.layers[index], columns, mixed, mix)
        yield mixed


def run_layer(
    ops: GpuOps,
    layer: Any,
    streams: torch.Tensor,
    memory: GdnMemory | AttentionMemory,
    columns: Columns,
    mixed: Mixed | None = None,
    mix: Any | None = None,
) -> Mixed | None:
    """One layer on streams [T, S, H], in place.

    mixed: what the layer reads, if the one before gave it; mix: of the one after, for which it is given then.
    """
    x, inject = mixed if mixed is not None else ops.hyper_mix(streams, layer.hc_attn)
    if isinstance(memory, GdnMemory):
        y, weight = ops.gdn(layer.mixer, x, memory, columns), layer.mixer.out
    else:
        y, weight = ops.attention(layer.mixer, x, memory, columns), layer.mixer.output
    x, inject = ops.linear_mix(weight, y, streams, inject, layer.hc_ffn)
    del y, mixed  # a prompt's are large, and its experts need the room
    if mix is None:
        ops.experts_combine(layer.experts, x, streams, inject)
        return None
    return ops.experts_mix(layer.experts, x, streams, inject, mix)
