"""What model files hold and what one token reads of them, counted from the headers alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from .groups import part_of, report_order
from .model import ModelFiles

# Parts that a decoded token of the trunk does not read.
_NOT_READ = ("draft layer", "vision", "other")


@dataclass
class Part:
    """All tensors of one part and one block type. `token_bytes` is what decoding one token reads of them."""

    part: str
    type: str
    tensors: int = 0
    weights: int = 0
    bytes: int = 0
    token_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes / self.weights

    def as_dict(self) -> dict[str, str | int | float]:
        return {**asdict(self), "bits_per_weight": self.bits_per_weight}


@dataclass(frozen=True)
class Routing:
    """The sizes that decide how much of a tensor one token reads; zeros where they are not known."""

    trunk_layers: int | None
    experts: int
    experts_used: int
    ngram_rows: int  # rows of the n-gram table read per token

    def token_bytes(self, part: str, size: int, rows: int) -> int:
        """Of a tensor of `size` bytes and `rows` rows in all."""
        if part in _NOT_READ:
            return 0
        if part == "embedding":
            return size // rows
        if part == "n-gram table":
            return size // rows * self.ngram_rows
        if part.startswith("experts"):
            return size * self.experts_used // self.experts if self.experts else 0
        return size


def draft_bytes(files: ModelFiles, routing: Routing) -> int:
    """What one pass of the draft layer reads: its own tensors like a token's, and a head; 0 without a draft layer."""
    read, head = 0, 0
    for name, tensor in files.tensors.items():
        size, rows = tensor.nbytes, math.prod(tensor.shape[:-1])
        if part_of(name, routing.trunk_layers) == "draft layer":
            own_head = "shared_head_head" in name
            part = part_of(name)
            read += size if part == "draft layer" else routing.token_bytes(part, size, rows)
            head = -1 if own_head else head
        elif part_of(name) == "output head" and head >= 0:
            head = size
    return read + max(head, 0) if read else 0


def parts_of(files: ModelFiles, routing: Routing) -> list[Part]:
    """One entry per part and block type, in the order a token meets them."""
    parts: dict[tuple[str, str], Part] = {}
    tied = not any(part_of(name, routing.trunk_layers) == "output head" for name in files.tensors)
    shards = sum(part_of(name, routing.trunk_layers) == "n-gram table" for name in files.tensors)
    for name, tensor in files.tensors.items():
        part = part_of(name, routing.trunk_layers)
        entry = parts.setdefault((part, tensor.type.name), Part(part, tensor.type.name))
        entry.tensors += 1
        entry.weights += math.prod(tensor.shape)
        entry.bytes += tensor.nbytes
        read = routing.token_bytes(part, tensor.nbytes, math.prod(tensor.shape[:-1]))
        if part == "embedding" and tied:
            read += tensor.nbytes
        entry.token_bytes += read // shards if part == "n-gram table" else read
    return sorted(parts.values(), key=lambda entry: (report_order(entry.part), -entry.bytes))
