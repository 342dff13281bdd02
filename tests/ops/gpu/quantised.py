"""What a kernel gave, as numbers."""

from __future__ import annotations

import torch

from jubako.ops.gpu.activation import Quantised
from jubako.ops.gpu.prompt import Halves


def plain(x: torch.Tensor | Quantised | Halves) -> torch.Tensor:
    """float32 [T, width] on the CPU."""
    return (x if isinstance(x, torch.Tensor) else x.plain()).cpu()
