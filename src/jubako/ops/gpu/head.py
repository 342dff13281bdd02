"""From streams to logits."""

from __future__ import annotations

import torch

from .hyper import HyperMix, hyper_mix
from .linear import linear
from .matrix import Matrix


def head(mix: HyperMix, output: Matrix, streams: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [T, vocabulary] of streams [T, S, H], into `out` if given."""
    return linear(output, hyper_mix(streams, mix)[0], out)
