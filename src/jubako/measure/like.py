"""A published model's network without its file: the shapes of the published geometry in the blocks it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..arch.config import Config
from ..arch.weights import Network
from ..errors import RequestError
from ..place.known import Known
from .geometry import network_config
from .hollow import hollow_network
from .tensor_plan import BlockTypes, PlannedTensor, plan_tensors

DRAFT_TYPE = "Q8_0"  # of the published draft layers
PATTERNS = {"gate_up": ("ffn_gate_exps", "ffn_up_exps"), "down": ("ffn_down_exps",)}


def like(known: Known) -> Network:
    """Shapes and types only: its tensors hold no bytes. With a draft layer where one is published."""
    config = replace(network_config(experts=known.experts, draft=bool(known.draft)), name=known.name)
    draft = {f"blk.{config.layers}.*_exps.weight": DRAFT_TYPE}
    types = BlockTypes({**BlockTypes().groups, **known.types}, {**known.layers, **draft})
    plan = plan_tensors(config, types)
    if known.upper and known.size:
        plan = _closest(config, types, known.upper, known.size, plan)
    return hollow_network(config, plan)


def _closest(
    config: Config, types: BlockTypes, upper: tuple[str, str], size: int, plan: list[PlannedTensor]
) -> list[PlannedTensor]:
    """The plan with the upper type in so many layers, from the first on, that its trunk is nearest to the size."""
    group, kind = upper
    if group not in PATTERNS:
        raise RequestError(f"a mix of types is made of gate_up or down, not of {group!r}")
    every = {f"blk.{layer}.{part}.weight": kind for layer in range(config.layers) for part in PATTERNS[group]}
    low, high = _trunk(config, plan), _trunk(config, plan_tensors(config, _with(types, every)))
    count = round(config.layers * min(max((size - low) / (high - low), 0), 1))
    some = {name: kind for name in every if int(name.split(".")[1]) < count}
    return plan_tensors(config, _with(types, some))


def _with(types: BlockTypes, patterns: Mapping[str, str]) -> BlockTypes:
    return BlockTypes(types.groups, {**types.patterns, **patterns})


def _trunk(config: Config, plan: list[PlannedTensor]) -> int:
    """Bytes of all tensors but the draft layer's."""
    return sum(tensor.nbytes for tensor in plan if not tensor.name.startswith(f"blk.{config.layers}."))
