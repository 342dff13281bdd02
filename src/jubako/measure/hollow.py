"""Tensors that have a shape and a type but no bytes: what a plan, or a network made elsewhere, needs of a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..arch.config import Config
from ..arch.weights import Network, load_network
from ..files import ModelFiles
from ..files.tensors import StoredTensor
from .geometry import metadata
from .tensor_plan import PlannedTensor

NOWHERE = Path("synthetic")


def hollow(tensor: PlannedTensor) -> StoredTensor:
    """A tensor of the right shape whose bytes are all the same one."""
    shape = (*tensor.shape[:-1], tensor.row_bytes)
    data = np.broadcast_to(np.zeros((), np.uint8), shape)
    return StoredTensor(tensor.name, tensor.type, tensor.shape, data, NOWHERE, 0)


def hollow_network(config: Config, plan: Iterable[PlannedTensor]) -> Network:
    """The network of these tensors."""
    tensors = {tensor.name: hollow(tensor) for tensor in plan}
    return load_network(ModelFiles("gguf", metadata(config), tensors, {}, [NOWHERE]))
