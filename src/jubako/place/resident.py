"""A network whose dense weights lie in memory of their own, experts and tables left in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..arch.config import Config
from ..arch.network import Experts, Network
from ..arch.tensor import Tensor
from .where import Files


def tensors_of(part: object) -> Iterator[Tensor]:
    """All tensors of a part of the network."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list):
        for item in part:
            yield from tensors_of(item)
    elif is_dataclass(part) and not isinstance(part, Config):
        for field in fields(part):
            yield from tensors_of(getattr(part, field.name))


def in_file(network: Network) -> list[Tensor]:
    """What stays in the file: tables that are read by row. The embedding is one unless it is the output matrix too."""
    tables = [layer.ngram.table for layer in network.layers if layer.ngram is not None]
    return tables if network.embed is network.output else [network.embed, *tables]


def routed(experts: Experts) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, up and down of a layer's routed experts."""
    return experts.gate, experts.up, experts.down


def expert_layers(network: Network) -> list[Experts]:
    """The experts of every layer, the draft layer's last."""
    layers = [*network.layers, *([network.draft.layer] if network.draft else [])]
    return [layer.experts for layer in layers]


def dense_tensors(network: Network) -> list[Tensor]:
    """Every tensor that is read whole for a token, once."""
    left = {id(t) for t in in_file(network)} | {id(t) for e in expert_layers(network) for t in routed(e)}
    found = {id(tensor): tensor for tensor in tensors_of(network) if id(tensor) not in left}
    return list(found.values())


def dense_bytes(network: Network) -> int:
    """Bytes of `dense_tensors`."""
    return sum(tensor.nbytes for tensor in dense_tensors(network))


def resident(network: Network, files: Files, progress: Callable[[int], None] | None = None) -> Network:
    """The network with its dense weights read into memory, past the page cache. progress: gets bytes just read.

    Raises MachineError for what can't be read.
    """
    dense = {id(tensor) for tensor in dense_tensors(network)}
    read: dict[int, Tensor] = {}

    def loaded(part: Any) -> Any:
        if isinstance(part, Tensor):
            if id(part) not in dense:
                return part
            if id(part) not in read:
                read[id(part)] = replace(part, data=files.read(part))
                if progress is not None:
                    progress(part.nbytes)
            return read[id(part)]
        if isinstance(part, list):
            return [loaded(item) for item in part]
        if is_dataclass(part) and not isinstance(part, (Config, type)):
            changed = {field.name: loaded(getattr(part, field.name)) for field in fields(part)}
            return replace(part, **changed)
        return part

    result: Network = loaded(network)
    return result
