"""What lies in which box of this machine, for those who watch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import psutil

from ..arch.network import Experts, Ngram
from ..arch.tensor import Tensor
from ..arch.weights import Network


@dataclass(frozen=True)
class Held:
    """Bytes that the engine keeps beside the weights: pages of keys and values, other states, files on disk.

    far: of the pages of a card, what lies in RAM.
    """

    pages: int
    states: int
    disk: int = 0
    far: int = 0


def weight_bytes(network: Network) -> dict[str, int]:
    """Bytes of the weights in use, by what decides where they lie."""
    sizes = {"dense weights": 0, "experts": 0, "n-gram table": 0}
    counted: set[int] = set()
    for kind, tensor in _tensors(network):
        if id(tensor) not in counted:
            counted.add(id(tensor))
            sizes[kind] += tensor.nbytes
    return sizes


def boxes(
    weights: Mapping[str, int], held: Held, file: Path, video: int = 0, experts: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """The tiers with their sizes and parts. file: one of the model's. video: bytes of the card that holds it.

    experts: bytes of them by tier; None: all where the dense weights are.
    """
    fast = "VRAM" if video else "RAM"
    lie_in = {fast: weights["experts"]} if experts is None else experts
    parts: dict[str, dict[str, int]] = {"VRAM": {}, "RAM": {}, "SSD": {"n-gram table": weights["n-gram table"]}}
    parts[fast]["dense weights"] = weights["dense weights"]
    for tier, size in lie_in.items():
        parts[tier]["experts"] = size
    parts[fast]["keys and values"] = held.pages - held.far
    if video:
        parts["RAM"]["keys and values"] = held.far
    parts["RAM"]["saved states"], parts["SSD"]["sessions"] = held.states, held.disk
    ram = _box("RAM", psutil.virtual_memory().total, parts["RAM"])
    ssd = _box("SSD", shutil.disk_usage(file.parent).total, parts["SSD"])
    return [_box("VRAM", video, parts["VRAM"]), ram, ssd] if video else [ram, ssd]


def _box(name: str, size: int, parts: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "bytes": size, "parts": [{"name": n, "bytes": b} for n, b in parts.items() if b > 0]}


def _tensors(part: object, kind: str = "dense weights") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a part of the network."""
    if isinstance(part, Tensor):
        yield kind, part
    elif isinstance(part, list):
        for item in part:
            yield from _tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            routed = isinstance(part, Experts) and field.name in ("gate", "up", "down")
            table = isinstance(part, Ngram) and field.name == "table"
            own = "experts" if routed else "n-gram table" if table else "dense weights"
            yield from _tensors(getattr(part, field.name), own)
