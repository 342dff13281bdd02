"""The n-gram embedding's way into the residual streams: gated by what each stream holds, then smoothed over tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..network import Ngram
from .basics import causal_conv, float32, linear, rms_norm


def ngram_inject(
    weights: Ngram, streams: torch.Tensor, embedding: torch.Tensor, state: torch.Tensor, eps: float = 1e-6
) -> None:
    """Add the n-gram embedding [T, E] of each token to streams [T, S, H], in place.

    embedding: the token's table rows one after the other. state [(kernel-1)*dilation, S*H]: the convolution's past
    columns (normed), oldest first, moved on in place.
    """
    tokens, count, hidden = streams.shape

    def gamma(weight: torch.Tensor) -> torch.Tensor:
        return weight.view(count, hidden)

    key = rms_norm(linear(weights.key, embedding).view(streams.shape), gamma(float32(weights.norm_key)), eps)
    query = rms_norm(streams, gamma(float32(weights.norm_query)), eps)
    match = (key * query).sum(dim=-1, keepdim=True) / math.sqrt(hidden)
    gate = torch.sigmoid(match.sign() * match.abs().clamp(min=1e-6).sqrt())
    value = gate * linear(weights.value, embedding)[:, None, :]

    taps = float32(weights.conv)
    dilation = len(state) // (taps.shape[1] - 1)
    normed = rms_norm(value, gamma(float32(weights.norm_conv)), eps).reshape(tokens, count * hidden)
    smoothed = F.silu(causal_conv(normed, taps, state, dilation))
    streams += value + smoothed.view(streams.shape)
