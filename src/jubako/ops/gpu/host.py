"""`HostExperts`: where routed experts lie in main memory, in the file's own blocks,
for the CPU's threads and for copying.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...arch import weights as arch
from ...arch.tensor import Tensor
from .pinned import copy_of


@dataclass(frozen=True, slots=True, eq=False)
class HostExperts:
    """addresses uint64 [layers, experts, 3] of gate, up and down, whose rows lie one after the other; 0 where an expert
    is not in memory. They may change at any time, unless `fixed`: then the GPU may read there too. keep: what owns that
    memory. bring: of a layer's experts those from the disk that are not there, in parts, for `present`; expect: is told
    which it will be asked for next, for when the disk has nothing else to do."""

    addresses: np.ndarray
    keep: object = None
    fixed: bool = False
    bring: Callable[[int, np.ndarray], Iterator[slice]] | None = None
    expect: Callable[[int, np.ndarray], None] | None = None

    def present(self, layer: int, experts: np.ndarray) -> Iterator[slice]:
        """Parts of these experts that are in memory, each until the next is asked for: copies must be over by then,
        unless `fixed`."""
        if self.bring is None:
            yield slice(0, len(experts))
        else:
            yield from self.bring(layer, experts)

    def part(self, layers: range) -> HostExperts:
        """Those of some layers, counted from the first of these."""

        def bring(layer: int, experts: np.ndarray) -> Iterator[slice]:
            return self.present(layers.start + layer, experts)

        def expect(layer: int, experts: np.ndarray) -> None:
            if self.expect is not None:
                self.expect(layers.start + layer, experts)

        addresses = self.addresses[layers.start : layers.stop]
        if self.bring is None:
            return HostExperts(addresses, self.keep, self.fixed)
        return HostExperts(addresses, self.keep, self.fixed, bring, expect)

    @classmethod
    def of(cls, layers: Sequence[arch.Experts], device: torch.device) -> HostExperts:
        """Those of a file: copies in pinned memory for a GPU, else where they are."""
        stacks = [[_placed(tensor, device) for tensor in (e.gate, e.up, e.down)] for e in layers]
        return cls(np.stack([addresses_of(stack) for stack in stacks]), stacks, fixed=True)


def addresses_of(stacks: Sequence[np.ndarray]) -> np.ndarray:
    """uint64 [experts, 3] of gate, up and down, each [experts, rows, row bytes] with whole rows side by side."""
    places = [stack.ctypes.data + np.arange(len(stack)) * stack.strides[0] for stack in stacks]
    return np.ascontiguousarray(np.stack(places, 1).astype(np.uint64))


def bytes_at(address: int, count: int) -> torch.Tensor:
    """uint8 [count] in main memory, which somebody else owns."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _placed(tensor: Tensor, device: torch.device) -> np.ndarray:
    data = tensor.data
    if device.type != "cuda" and data[0].flags.c_contiguous:
        return data
    return copy_of(data, device)
