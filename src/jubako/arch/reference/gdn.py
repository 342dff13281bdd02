"""The gated delta net: a short convolution, then one matrix per V head that forgets, corrects and answers.

Per token and V head: S ← e^g S;  u = β (v − Sᵀk);  S ← S + k uᵀ;  o = Sᵀq   (arXiv 2412.06464).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..config import Config
from ..network import Gdn
from .basics import causal_conv, float32, rms_norm

L2_EPS = 1e-6  # the official code takes this constant, whatever the norms' epsilon


@dataclass
class GdnState:
    """conv [kernel-1, C]: the last raw qkv columns, oldest first · memory [heads, dim of k, dim of v]."""

    conv: torch.Tensor
    memory: torch.Tensor

    @classmethod
    def empty(cls, config: Config) -> GdnState:
        return cls(
            conv=torch.zeros(config.conv_kernel - 1, config.gdn_channels),
            memory=torch.zeros(config.gdn_value_heads, config.gdn_dim, config.gdn_dim),
        )


def gdn(
    weights: Gdn,
    qkv: torch.Tensor,
    z: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    state: GdnState,
    eps: float = 1e-6,
) -> torch.Tensor:
    """From the raw projections qkv [T, C], z [T, heads*dim], beta and alpha [T, heads] to the output gate's product
    [T, heads*dim], which `weights.out` still has to project. Tokens are taken one after the other."""
    tokens = len(qkv)
    heads, dim, _ = state.memory.shape
    mixed = F.silu(causal_conv(qkv, float32(weights.conv), state.conv))
    inner = heads * dim
    keys = (mixed.shape[1] - inner) // 2
    q = mixed[:, :keys].reshape(tokens, -1, dim)
    k = mixed[:, keys : 2 * keys].reshape(tokens, -1, dim)
    v = mixed[:, 2 * keys :].reshape(tokens, heads, dim)
    repeat = heads * dim // keys  # V head j uses K head j mod key_heads
    q = (_l2_norm(q) / math.sqrt(dim)).repeat(1, repeat, 1)
    k = _l2_norm(k).repeat(1, repeat, 1)
    beta = torch.sigmoid(beta)
    decay = torch.exp(float32(weights.a) * F.softplus(alpha + float32(weights.dt_bias)))

    memory = state.memory
    out = torch.empty(tokens, heads, dim)
    for t in range(tokens):
        memory *= decay[t][:, None, None]
        recalled = (k[t][:, None, :] @ memory)[:, 0]
        correction = beta[t][:, None] * (v[t] - recalled)
        memory += k[t][:, :, None] * correction[:, None, :]
        out[t] = (q[t][:, None, :] @ memory)[:, 0]
    normed = rms_norm(out, float32(weights.norm), eps)
    return (normed * torch.sigmoid(z.view(tokens, heads, dim))).reshape(tokens, inner)


def _l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
