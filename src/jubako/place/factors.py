"""Factors that no probe gives: what kernels and hand-offs leave of a machine's rates. Each with where it was measured.

`CALIBRATED` makes predictions; `IDEAL` leaves the machine's own limit, which nothing can beat.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Factors:
    """Shares are of a measured rate; times are seconds.

    cpu_layer       Python and small kernels of one layer of a step on the CPU
    cpu_kernels     of the rate that the probe saw on large matrices, what the network's own reach
    cpu_prompt      the same of multiply-adds in prompts
    cpu_layer_token attention, recurrence, norms of one layer and one token of a prompt
    card_dense      dense weights of a step, of the card's read rate
    card_experts    experts in slots, of the card's read rate
    card_launches   launches of a layer
    card_column     each further column of a step, in one layer
    handoff         a layer that rings the CPU and waits for it, beyond the work
    host            a step asked for by the host: ids up, logits down
    card_chunk      a pass of a prompt reads and unpacks all weights: of the card's read rate
    card_macs       multiply-adds of a prompt, of the card's rate of large half-precision products
    link            of the link's rate, while a prompt's experts stream beside the compute
    ssd             of the disk's rate in order, when whole experts are read here and there
    """

    cpu_layer: float
    cpu_kernels: float
    cpu_prompt: float
    cpu_layer_token: float
    card_dense: float
    card_experts: float
    card_launches: float
    card_column: float
    handoff: float
    host: float
    card_chunk: float
    card_macs: float
    link: float
    ssd: float


CALIBRATED = Factors(
    # Two cores of a Sapphire Rapids server, 30 November 2026, docs/performance/plan.md: the real widths (4 layers) and
    # the small model, each beside a probe of the same minute.
    cpu_layer=140e-6,
    cpu_kernels=0.855,
    cpu_prompt=0.78,
    cpu_layer_token=27e-6,
    # One H200, docs/performance/gpu.md, 30 November 2026: 4.05 ms for one column, 8.55 for four.
    card_dense=0.45,
    card_experts=0.45,
    card_launches=14,
    card_column=18e-6,
    handoff=12e-6,
    host=0.5e-3,
    # The same: a prompt of 512 in 0.286 s, of 4,096 in 0.414 s.
    card_chunk=0.055,
    card_macs=0.3,
    link=0.9,
    ssd=0.85,
)
IDEAL = Factors(0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1)
