"""`ExpertStore`: a network's routed experts in main memory, as many as a budget holds; the rest is read when needed.

The work is native (csrc/store.h). When all fit they lie as in the file and are read once; else frames of one expert
each hold those used most, and what a layer lacks is read when its router asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from .. import _cpu
from ..arch.network import Network
from ..arch.tensor import Tensor
from ..errors import MachineError
from .resident import expert_layers, routed
from .sizes import size_text
from .where import Files, stretch_of

LEAST_FRAMES = 32  # of each shape: the experts of a token, and reading ahead
Part = tuple[int, int, int, int]


class ExpertStore:
    """native: what kernels use. layers: how many, the draft layer, which is the last, included."""

    def __init__(self, network: Network, files: Files, budget: int) -> None:
        """budget: bytes for experts. Raises MachineError where it does not hold a few, or a tensor is in no file."""
        stacks = [routed(experts) for experts in expert_layers(network)]
        parts = [tuple(_part(tensor, files) for tensor in stack) for stack in stacks]
        count = network.config.experts
        shapes, frame_bytes = _cpu.store_shapes(parts)
        self.layers, self.experts = len(parts), count
        self.bytes_of_all = sum(tensor.nbytes for stack in stacks for tensor in stack)
        frames = [] if self.bytes_of_all <= budget else frames_of(shapes, frame_bytes, count, budget)
        self.frames = sum(frames)
        self.bytes = sum(n * size for n, size in zip(frames, frame_bytes, strict=True)) if frames else self.bytes_of_all
        try:
            self.native = _cpu.ExpertStore(files.reader, parts, count, frames)
        except MemoryError as error:
            raise MachineError(
                f"the system refuses {size_text(self.bytes)} of memory for experts; allow less with --ram"
            ) from error
        self._stacks = stacks

    @property
    def lie_in(self) -> dict[str, int]:
        """Bytes of experts by the box that they lie in."""
        return {"RAM": self.bytes, "SSD": self.bytes_of_all - min(self.bytes, self.bytes_of_all)}

    @property
    def whole(self) -> bool:
        """Whether all experts are in memory."""
        return self.native.whole

    def load(self, progress: Callable[[int], None] | None = None) -> None:
        """Read everything if all fits. progress: gets bytes just read. Raises MachineError for what can't be read."""
        before = 0
        for _, done in self.load_layers() if self.whole else ():
            if progress is not None:
                progress(done - before)
            before = done

    def load_layers(self) -> Iterator[tuple[int, int]]:
        """Read layer after layer of a store that holds all: its number, the bytes read so far. Raises MachineError."""
        done = 0
        for layer, stack in enumerate(self._stacks):
            try:
                self.native.load(layer)
            except _cpu.ReadError as error:
                raise MachineError(str(error)) from error
            done += sum(tensor.nbytes for tensor in stack)
            yield layer, done

    def stack(self, layer: int, part: int) -> np.ndarray:
        """Gate, up or down (part 0, 1, 2) of all experts of a layer, uint8 [experts, rows, row bytes]. If `whole`."""
        tensor = self._stacks[layer][part]
        stretch = stretch_of(tensor)
        assert stretch is not None
        raw = self.native.part(layer, part, stretch.bytes)
        return np.lib.stride_tricks.as_strided(raw, tensor.data.shape, tensor.data.strides, writeable=False)


def frames_of(shapes: list[int], frame_bytes: list[int], experts: int, budget: int) -> list[int]:
    """Frames of each shape that fit in the budget together, the same share of the experts of every shape."""
    layers = [shapes.count(shape) for shape in range(len(frame_bytes))]
    wanted = sum(n * experts * size for n, size in zip(layers, frame_bytes, strict=True))
    least = [min(LEAST_FRAMES, n * experts) for n in layers]
    needed = sum(n * size for n, size in zip(least, frame_bytes, strict=True))
    if needed > budget:
        raise MachineError(
            f"{budget / 1e9:.2f} GB of memory are left for experts, and {needed / 1e9:.2f} GB are needed at least; "
            "allow more memory, or ask for a smaller context"
        )
    spare = (budget - needed) / max(wanted - needed, 1)
    return [
        min(n * experts, low + math.floor((n * experts - low) * spare)) for n, low in zip(layers, least, strict=True)
    ]


def _part(tensor: Tensor, files: Files) -> Part:
    """(file, offset of expert 0, bytes from one expert to the next, bytes of one), as the native store takes them."""
    stretch = stretch_of(tensor)
    if stretch is None:
        raise MachineError(f"{tensor.file}: {tensor.name} was converted in memory; this needs the model as a GGUF")
    stride = tensor.data.strides[0]
    return files.number(stretch.file), stretch.offset, stride, stretch.bytes - (tensor.shape[0] - 1) * stride
