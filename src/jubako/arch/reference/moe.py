"""The expert layer: each token uses its few best of many small networks, and one that all share."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..network import Experts
from .basics import expert_float32, linear


def route(router_logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest experts of logits [T, E]: ids int32 [T, k] by falling probability, weights [T, k] that sum to 1.

    Where probabilities tie the lower expert comes first.
    """
    probabilities = router_logits.softmax(dim=-1)
    weights, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    weights = weights[:, :k]
    return ids[:, :k].int(), weights / weights.sum(dim=-1, keepdim=True)


def experts(
    weights: Experts, x: torch.Tensor, ids: torch.Tensor, route_weights: torch.Tensor, shared: torch.Tensor | None
) -> torch.Tensor:
    """Weighted sum over the chosen experts of x [T, H], in the order of their rank: [T, H].

    shared: logits [T] of the shared expert's gate, `linear(shared_router, x)[:, 0]`; that expert is added last.
    None leaves it out.
    """
    tokens, k = ids.shape
    outputs = torch.empty(tokens, k, x.shape[1])
    for index in sorted(set(ids.flatten().tolist())):
        token, rank = torch.where(ids == index)
        hidden = F.silu(x[token] @ expert_float32(weights.gate, index).T)
        hidden *= x[token] @ expert_float32(weights.up, index).T
        down = expert_float32(weights.down, index)[:, : hidden.shape[1]]  # padded columns meet zeros
        outputs[token, rank] = hidden @ down.T
    result = torch.zeros_like(x)
    for place in range(k):
        result += route_weights[:, place, None] * outputs[:, place]
    if shared is not None:
        hidden = F.silu(linear(weights.shared_gate, x)) * linear(weights.shared_up, x)
        padding = weights.shared_down.shape[1] - hidden.shape[1]
        result += torch.sigmoid(shared)[:, None] * linear(weights.shared_down, F.pad(hidden, (0, padding)))
    return result
