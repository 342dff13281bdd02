"""What a kernel gave, as numbers."""

from __future__ import annotations

import torch

from jubako.ops.gpu.activation import Quantised


def plain(x: torch.Tensor | Quantised) -> torch.Tensor:
    """float32 [T, width] on the CPU."""
    return (x.plain() if isinstance(x, Quantised) else x).cpu()
