"""What lies in which box of this machine, for those who watch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ..arch.weights import Network


def boxes(network: Network, paths: Sequence[Path], memory: Mapping[str, int], disk: Mapping[str, int]) -> list[Any]:
    """Main memory and SSD with their sizes and parts in bytes.

    paths: the model's files, which are mapped. memory, disk: what the engine itself keeps there.
    """
    layers = [*network.layers, *([network.draft.layer] if network.draft else [])]
    experts = sum(tensor.nbytes for layer in layers for tensor in _routed(layer.experts))
    table = sum(layer.ngram.table.nbytes for layer in layers if layer.ngram)
    dense = sum(path.stat().st_size for path in paths) - experts - table
    return [
        _box("RAM", psutil.virtual_memory().total, {"dense weights": dense, "experts": experts, **memory}),
        _box("SSD", shutil.disk_usage(paths[0].parent).total, {"n-gram table": table, **disk}),
    ]


def _routed(experts: Any) -> tuple[Any, ...]:
    return experts.gate, experts.up, experts.down


def _box(name: str, size: int, parts: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "bytes": size, "parts": [{"name": n, "bytes": b} for n, b in parts.items() if b > 0]}
