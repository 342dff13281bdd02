# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""Muon for matrices inside the network (K. Jordan 2024, scaled as in arXiv 2502.16982), Adam for everything else."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from .export import SMALL

TABLES = ("token_embd*", "per_layer_token_embd*", "output.weight")
RATES = {"token_embd.weight": 0.008, "per_layer_token_embd.weight": 0.008, "output.weight": 0.004}
SMALL_RATE, MUON_RATE, DECAY = 0.004, 0.006, 0.05


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest half-orthogonal matrices [N, rows, columns], roughly: five Newton-Schulz steps in bfloat16."""
    x = matrices.bfloat16()
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if turned else x


class Muon:
    """Matrices of one shape are stepped together."""

    def __init__(self, weights: list[nn.Parameter], compiled: bool) -> None:
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for weight in weights:
            self.groups[tuple(weight.shape[-2:])].append(weight)
        self.momenta = {weight: torch.zeros_like(weight) for weight in weights}
        self.orthogonal = torch.compile(orthogonal, dynamic=False) if compiled else orthogonal

    @torch.no_grad()
    def step(self, rate: float, momentum: float = 0.95) -> None:
        for shape, weights in self.groups.items():
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            momenta = [self.momenta[weight] for weight in weights]
            torch._foreach_lerp_(momenta, gradients, 1 - momentum)
            nesterov = torch._foreach_lerp(gradients, momenta, momentum)
            updates = self.orthogonal(torch.cat([update.view(-1, *shape) for update in nesterov]))
            pieces = updates.split([weight.numel() // (shape[0] * shape[1]) for weight in weights])
            torch._foreach_mul_(weights, 1 - rate * DECAY)
            scale = -rate * 0.2 * max(shape) ** 0.5
            torch._foreach_add_(
                weights, [p.view(w.shape).float() for p, w in zip(pieces, weights, strict=True)], alpha=scale
            )


class Optimiser:
    """Both, over the weights of a network by name; `step` takes a factor on all rates."""

    def __init__(self, weights: dict[str, nn.Parameter], compiled: bool = True) -> None:
        others = {name for name in weights if any(fnmatchcase(name, pattern) for pattern in (*SMALL, *TABLES))}
        self.muon = Muon([weight for name, weight in weights.items() if name not in others], compiled)
        groups = [{"params": [weights[name]], "lr": RATES.get(name, SMALL_RATE)} for name in sorted(others)]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.97), weight_decay=0.0, fused=True)
        self.rates = [RATES.get(name, SMALL_RATE) for name in sorted(others)]
        self.adam_weights = [weights[name] for name in sorted(others)]

    def step(self, factor: float, momentum: float = 0.95) -> None:
        nn.utils.clip_grad_norm_(self.adam_weights, 1.0)
        for group, rate in zip(self.adam.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.adam.step()
        self.muon.step(MUON_RATE * factor, momentum)
        for weight in [*self.adam_weights, *self.muon.momenta]:
            weight.grad = None
