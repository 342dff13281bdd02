"""The mixture of experts: the products of expert_step.py (expert_prompt.py for prompts), weighted and added up."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from .activation import Quantised, quantize
from .away import Away, collect
from .expert_down import adds_up, sum_down
from .expert_step import Cut, down, gate_up, usual_cut
from .hyper_prompt import PromptParts, settle
from .integer import fma
from .launch import COLUMNS
from .linear import Input, prompt_of
from .link import ask
from .mathfun import sigmoid
from .matrix import Matrix
from .peer_word import Outbox
from .slots import Slots
from .target import release, target, wait


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """A layer's experts.

    router  rows of all experts' router, then the shared expert's: [experts + 1, H]; one or two matrices
    routed  the experts' slots; shared: the shared expert as the only slot
    away    how those without a slot are reached; None where every expert has one
    """

    router: tuple[Matrix, ...]
    routed: Slots
    shared: Slots
    away: Away | None = None

    @property
    def count(self) -> int:
        return int(self.routed.table.shape[0])


@triton.jit
def weighted_sum(parts, weights, share, token, tokens, hidden, at, CHOSEN: tl.constexpr, FORM: tl.constexpr):
    """Elements `at` of a token's sum over its experts by rank, then of the shared one, weighted by sigmoid(share)."""
    total = tl.zeros_like(at).to(tl.float32)
    for rank in tl.static_range(CHOSEN):
        use = token * CHOSEN + rank
        y = tl.load(parts + use * hidden + at)
        total = fma(tl.load(weights + use) + total * 0.0, y, total, FORM)
    y = tl.load(parts + (tokens * CHOSEN + token) * hidden + at)
    gate = tl.sum(sigmoid(tl.load(share + token + tl.arange(0, 1)), FORM), axis=0)  # once, not for each element
    return fma(gate + y * 0.0, y, total, FORM)


@triton.jit
def sum_kernel(
    parts, weights, share, out, inject, hidden,
    PIECE: tl.constexpr, CHOSEN: tl.constexpr, STREAMS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): the weighted sum to out [T, H], or added to streams."""
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(1)
    at = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    held = tl.minimum(at, hidden - 1)
    total = weighted_sum(parts, weights, share, token, tl.num_programs(1), hidden, held, CHOSEN, FORM)
    if STREAMS == 0:
        tl.store(out + token.to(tl.int64) * hidden + at, total, mask=at < hidden)
    else:
        for s in tl.static_range(STREAMS):
            place = out + (token * STREAMS + s).to(tl.int64) * hidden + at
            old = tl.load(place, mask=at < hidden, other=0.0)
            tl.store(
                place, fma(tl.load(inject + token * STREAMS + s) + total * 0.0, total, old, FORM), mask=at < hidden
            )


@dataclass(frozen=True, slots=True)
class Routed:
    """What the router says of T tokens: ids int32 [T, k], weights float32 [T, k], the shared expert's logit [T].

    slots int32 [T, k]: where the experts are, -1 for absent; None until somebody has looked them up.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    share: torch.Tensor
    slots: torch.Tensor | None = None

    def slots_in(self, table: torch.Tensor) -> torch.Tensor:
        """The slots by a layer's table; negative ids are absent."""
        if self.slots is not None:
            return self.slots
        return torch.where(self.ids >= 0, table[self.ids.clamp_min(0).long()], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Outputs of all uses [T·k + T, H], still to be weighted and added up."""

    outputs: torch.Tensor
    routed: Routed


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """What goes on beside a layer's experts (foresight.py).

    came    whether experts of this layer come by another stream; arrive: lets this stream wait for them
    fetch   told when what this layer fetches was launched
    finish  lets this stream wait until the streams [T, S, H] have been read
    """

    came: bool
    arrive: Callable[[], None]
    fetch: Callable[[], None]
    finish: Callable[[], None]


def parts_of(
    layer: Experts,
    x: Input,
    routed: Routed,
    cut: Cut | None = None,
    beside: Beside | None = None,
    outbox: Outbox | None = None,
) -> torch.Tensor | Parts | PromptParts:
    """The output of every chosen expert for every token of x [T, H], and of the shared one; or their sum [T, H].

    outbox: of another card, to which a sum is sent.
    """
    away = layer.away
    if len(routed.ids) > COLUMNS and target(routed.ids.device).dot:
        from .expert_prompt import parts_of_prompt

        return parts_of_prompt(layer, prompt_of(x), routed)
    cut = cut or usual_cut(len(routed.ids))
    read = x if isinstance(x, Quantised) and not x.fine else coarse(x)
    if away is None and len(routed.ids) <= COLUMNS and adds_up(layer):
        return sum_down(layer, gate_up(layer, read, routed, cut), routed, outbox)
    if away is None:
        return Parts(down(layer, gate_up(layer, read, routed, cut), routed, cut), routed)
    if len(routed.ids) > COLUMNS:
        return Parts(in_turns(layer, away, read, routed, cut), routed)
    slots = routed.slots_in(layer.routed.table)
    slots = ask(away, layer.routed, read, routed.ids, slots, beside is not None and beside.came)
    routed = replace(routed, slots=slots)
    if beside is not None:
        beside.arrive()
        beside.fetch()
    hidden = gate_up(layer, read, routed, cut)
    if adds_up(layer):
        given: torch.Tensor | Parts = sum_down(layer, hidden, routed, outbox)
    else:
        given = Parts(down(layer, hidden, routed, cut), routed)
        collect(away, slots, given.outputs)
    if beside is not None:
        beside.finish()
    return given


def in_turns(layer: Experts, away: Away, x: Quantised, routed: Routed, cut: Cut) -> torch.Tensor:
    """Outputs of a prompt's uses whose experts come in turns (stream.py)."""
    outputs: torch.Tensor | None = None
    assert away.stream is not None
    for slots in away.stream.turns(away.layer):
        found = slots.table[routed.ids.long()]
        here, mine = replace(layer, routed=slots, away=None), replace(routed, slots=found)
        given = down(here, gate_up(here, x, mine, cut), mine, cut)
        there = torch.nn.functional.pad(found.reshape(-1) >= 0, (0, len(found)), value=True)
        outputs = given if outputs is None else torch.where(there[:, None], given, outputs)
    assert outputs is not None
    return outputs


def add_up(parts: Parts | PromptParts, out: torch.Tensor, inject: torch.Tensor | None = None) -> torch.Tensor:
    """Every token's weighted sum, to out [T, H] or, with inject [T, S], added to streams `out` [T, S, H]."""
    if isinstance(parts, PromptParts):
        if inject is not None:
            settle(out, inject, parts, None)
        else:
            settle(out.zero_()[:, None], torch.ones_like(out[:, :1]), parts, None)
        return out
    tokens, chosen = parts.routed.ids.shape
    hidden, to = parts.outputs.shape[1], target(out.device)
    sum_kernel[(-(-hidden // 256), tokens)](
        parts.outputs, parts.routed.weights, parts.routed.share, out, out if inject is None else inject, hidden,
        PIECE=256, CHOSEN=chosen, STREAMS=0 if inject is None else out.shape[1], FORM=to.form, OVERLAP=to.overlap,
        num_warps=2, **to.options,
    )  # fmt: skip
    return out


def experts(layer: Experts, x: Input, routed: Routed, cut: Cut | None = None) -> torch.Tensor:
    """The chosen experts' weighted sum by rank, then the shared expert's gated output: [T, H]."""
    return summed(parts_of(layer, x, routed, cut))


def summed(given: torch.Tensor | Parts | PromptParts) -> torch.Tensor:
    """What `parts_of` gave, as every token's weighted sum [T, H]."""
    if isinstance(given, torch.Tensor):
        return given
    share = given.share if isinstance(given, PromptParts) else given.routed.share
    return add_up(given, torch.empty(len(share), given.outputs.shape[1], device=share.device))


def experts_combine(
    layer: Experts,
    x: Input,
    routed: Routed,
    streams: torch.Tensor,
    inject: torch.Tensor,
    beside: Beside | None = None,
) -> None:
    """Add the experts' output to streams [T, S, H], in place, weighted by inject [T, S]."""
    parts = parts_of(layer, x, routed, beside=beside)
    if isinstance(parts, torch.Tensor):
        from .combine import hyper_combine

        hyper_combine(streams, inject, parts)
    else:
        add_up(parts, streams, inject)


def coarse(x: Input) -> Quantised:
    """x in eight bits."""
    return quantize(x if isinstance(x, torch.Tensor) else x.plain(), fine=False)
