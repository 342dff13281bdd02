"""Hyper-connections: a block reads a gated mean of the residual streams and writes back to each with its own weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..network import HyperMix
from .basics import float32, linear, rms_norm


def hyper_mix(streams: torch.Tensor, mix: HyperMix, eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a block reads of streams [T, S, H]: mixed [T, H], and how strongly it writes back: inject [T, S] or None.

    The division by S comes before the activation in both places.
    """
    tokens, count, hidden = streams.shape
    normed = rms_norm(streams, float32(mix.norm).view(count, hidden), eps)
    joined = normed.reshape(tokens, count * hidden)
    gate = torch.sigmoid(linear(mix.up, F.silu(linear(mix.down, joined) / count)))
    mixed = (gate.view(tokens, count, hidden) * normed).mean(dim=1)
    inject = None if mix.inject is None else 2 * torch.sigmoid(linear(mix.inject, joined) / count)
    return mixed, inject


def hyper_combine(streams: torch.Tensor, inject: torch.Tensor, out: torch.Tensor) -> None:
    """Add a block's output [T, H] to streams [T, S, H], in place, weighted by inject [T, S]."""
    streams += inject[:, :, None] * out[:, None, :]
