"""Factors that no probe gives: what kernels and hand-offs leave of a machine's rates. Each with where it was measured.

`CALIBRATED` makes predictions. `APART` gives the limit that a plan shows: each part as fast as it was measured to run
alone, and nothing lost where parts meet. `IDEAL` leaves bare bytes over the machine's rates, which nothing can beat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Factors:
    """Shares are of a measured rate; times are seconds.

    cpu_layer       Python and small kernels of one layer of a step on the CPU
    cpu_kernels     of the rate that the probe saw on large matrices, what the network's own reach
    cpu_prompt      the same of multiply-adds in prompts
    cpu_layer_token attention, recurrence, norms of one layer and one token of a prompt, shared by the cores
    card_dense      dense weights and state of a step, of the card's read rate
    card_experts    experts in slots, of the card's read rate
    card_cache      keys and values, of the card's read rate
    card_attending  a layer of attention in a step whose context is as long as what is chosen from it
    card_launches   launches of a layer
    card_column     each further column of a step, in one layer
    blind           how far what slots and RAM keep is from the most popular experts, on the way to any experts
    absent          of the CPU's rate on experts, what it reaches on the few that one layer lacks
    fetch           of the link's rate beside the CPU at work, what fetching and laying out an expert leaves
    link_from_frames
                    of the link's rate, where experts come from the disk and move in RAM
    ahead           absent experts of a layer that are brought before it asks, at most
    wrong           of those the share that it does not ask for, for one that stands last among ten
    asking          a layer that may lack experts: naming the next one's, handing over, taking rows
    handoff         a layer that rings the CPU and waits for it, beyond the work
    host            a step asked for by the host: ids up, logits down
    card_chunk      a pass of a prompt reads and unpacks all weights: of the card's read rate
    card_macs       multiply-adds of a prompt, of the card's rate of large half-precision products
    card_chosen     attention of a prompt's token in one layer to what it chose, beyond that of the first tokens
    card_scored     choosing for a prompt's token in one layer, for each token before it
    far_cells       of the link's rate read in place, when single cells of keys and values are
    link            of the link's rate, while a prompt's experts stream beside the compute
    ssd             of the disk's rate in order, when whole experts are read here and there
    """

    cpu_layer: float
    cpu_kernels: float
    cpu_prompt: float
    cpu_layer_token: float
    card_dense: float
    card_experts: float
    card_cache: float
    card_attending: float
    card_launches: float
    card_column: float
    blind: float
    absent: float
    fetch: float
    link_from_frames: float
    ahead: float
    wrong: float
    asking: float
    handoff: float
    host: float
    card_chunk: float
    card_macs: float
    card_chosen: float
    card_scored: float
    far_cells: float
    link: float
    ssd: float


CALIBRATED = Factors(
    # Two cores of a Sapphire Rapids server, 30 November 2026, docs/performance/plan.md: the real widths (4 layers) and
    # the small model, each beside a probe of the same minute.
    cpu_layer=110e-6,
    cpu_kernels=0.855,
    cpu_prompt=0.75,
    cpu_layer_token=54e-6,
    # One H200, 30 November 2026, its last kernels of the day: 2.76 ms for one column, 4.45 for four, and 0.1 more where
    # the host asks; 0.3 more from 4,096 tokens of context on, however long.
    card_dense=0.755,
    card_experts=0.755,
    card_cache=1,
    card_attending=23e-6,
    card_launches=14,
    card_column=3e-6,
    host=0.1e-3,
    # There with 16 cores: eight rows of docs/performance/boxes.md with one column, 512 experts and 256, and four with
    # four, fitted together beside those kernels, with the rates that the probe saw in the same minutes.
    blind=0.1,
    absent=0.98,
    fetch=1.03,
    link_from_frames=0,  # the CPU alone works on them then
    ahead=2,
    wrong=0.33,
    asking=19e-6,
    handoff=46e-6,
    # There: 512, 4,096, 65,536 and 256,000 tokens in 80, 206, 3,504 and 14,260 ms with every expert in a slot.
    card_chunk=0.215,
    card_macs=0.33,
    card_chosen=0.3e-6,
    card_scored=1.4e-12,
    far_cells=0.46,  # after 250,000 tokens, 4,096 of them near: 1.21 ms more for one column, 4.72 for four
    link=0.95,
    ssd=0.85,
)
IDEAL = Factors(
    cpu_layer=0,
    cpu_kernels=1,
    cpu_prompt=1,
    cpu_layer_token=0,
    card_dense=1,
    card_experts=1,
    card_cache=1,
    card_attending=0,
    card_launches=0,
    card_column=0,
    blind=0,
    absent=1,
    fetch=1,
    link_from_frames=1,
    ahead=1e9,
    wrong=0,
    asking=0,
    handoff=0,
    host=0,
    card_chunk=1,
    card_macs=1,
    card_chosen=0,
    card_scored=0,
    far_cells=1,
    link=1,
    ssd=1,
)
# Kernels of a step or a chunk with everything in video memory, the CPU's kernels, link and disk by the probe, the last
# two and the CPU's experts at the rates that they have beside each other. Slots and RAM hold the most popular experts,
# CPU and link share the others and end together, and no layer waits for a hand-over or a guess.
APART = replace(
    CALIBRATED,
    cpu_layer=0,
    cpu_kernels=1,
    cpu_prompt=1,
    cpu_layer_token=0,
    blind=0,
    absent=1,
    link_from_frames=1,
    ahead=1e9,
    wrong=0,
    asking=0,
    handoff=0,
    link=1,
    ssd=1,
)
