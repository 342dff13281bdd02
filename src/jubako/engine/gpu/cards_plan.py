"""How layers lie on cards: by what they take there, and by how long prompts stay in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from ...arch.network import Experts, Network
from ...arch.tensor import Tensor
from ...ops.gpu.ops import index_ratios
from ...ops.gpu.planar import LAYOUTS
from ...ops.gpu.state import StatePool
from ...place.resident import tensors_of
from ...place.split import LayerCost, split


def layer_runs(
    network: Network,
    rooms: Sequence[int],
    speeds: Sequence[float],
    *,
    kv_bits: int,
    sequences: int,
    tokens: int,
    context: int,
) -> list[range]:
    """The layers of each card, which has so many bytes of room and such a speed relative to the others.

    sequences, tokens, context: as `GpuOps` takes them. Raises MachineError where they do not fit.
    """
    config, ratios = network.config, index_ratios(network)
    chosen = config.experts_used / config.experts

    def state(ratio: int | None, drafts: bool, ngram: int | None) -> int:
        meta = torch.device("meta")
        return StatePool(config, [ratio], sequences, tokens, context, kv_bits, meta, drafts, ngram).nbytes()

    layers = []
    for index, layer in enumerate(network.layers):  # whose n-gram table stays in RAM
        ngram = None if layer.ngram is None else 0
        held = layer if layer.ngram is None else replace(layer, ngram=replace(layer.ngram, table=layer.ngram.norm_key))
        layers.append(LayerCost(bytes_of(held) + state(ratios[index], False, ngram), work_of(held, chosen)))
    head = bytes_of(network.output) + bytes_of(network.head_mix)
    last = LayerCost(head, 0.0)  # of a prompt, only one token meets the head
    draft = network.draft
    if draft is not None:
        embed = bytes_of(network.embed) if draft.embed is None and network.embed is not network.output else 0
        work = sum(work_of(part, chosen) for part in (draft.layer, draft.fc_embedding, draft.fc_hidden))
        last = LayerCost(head + embed + bytes_of(draft) + state(ratios[-1], True, None), work)
    return split(layers, rooms, speeds, first=LayerCost(bytes_of(network.embed), 0.0), last=last)


def bytes_of(part: object) -> int:
    """Bytes that a part of the network takes on a card."""
    return sum(
        math.prod(tensor.shape[:-1]) * LAYOUTS[tensor.type.name].row_bytes(tensor.shape[-1])
        for tensor in tensors_of(part)
    )


def work_of(part: object, chosen: float) -> float:
    """Multiplications for a token of a prompt, `chosen` being the share of the experts that it goes to."""
    whole = float(sum(math.prod(tensor.shape) for tensor in tensors_of(part)))
    return whole - (1 - chosen) * sum(math.prod(tensor.shape) for tensor in _routed(part))


def _routed(part: object) -> list[Tensor]:
    if isinstance(part, Experts):
        return [part.gate, part.up, part.down]
    if isinstance(part, (Tensor, list)) or not hasattr(part, "__dataclass_fields__"):
        return []
    return [tensor for field in fields(part) for tensor in _routed(getattr(part, field.name))]  # type: ignore[arg-type]
