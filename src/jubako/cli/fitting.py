"""A look at the plan before a model is loaded: what would go where in one line, or an early word on what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MachineError
from ..place.sizes import size_text as size
from . import program

if TYPE_CHECKING:
    from ..place.census import Census
    from ..place.machine import Machine
    from ..place.plan import Plan, Wish

SMALL = 1 << 30  # bytes of a model below which nobody needs a plan


def look_ahead(files: Sequence[Path], device: str, wish: Wish) -> str:
    """One line on what goes where and how fast that is to be; "" for small models.

    Reads headers and measures nothing: speeds are said where `jubako probe` has run. Raises MachineError where the
    model does not fit, with what is missing and the best published one that does.
    """
    if device == "reference":
        return ""
    from ..files import open_model

    opened = open_model(list(files))  # all parts of a split set
    if sum(path.stat().st_size for path in opened.paths) < SMALL:
        return ""
    from ..arch.weights import load_network
    from ..place.census import take_census
    from ..place.fit import make_plan
    from ..place.probe import known_or_nominal

    if device == "cpu":
        wish = replace(wish, gpus=())
    census = take_census(load_network(opened))
    machine = known_or_nominal(files[0])
    plan = make_plan(census, machine, wish)
    if not plan.fits:
        raise MachineError(f"{files[0].name} does not fit: {plan.short}; {_what_would(machine, wish)}")
    return summary(census, plan)


def summary(census: Census, plan: Plan) -> str:
    """VRAM 11.9 of 12.0 GB, RAM 55.8 of 64.0 GB; 8 of 512 experts a layer in VRAM; about 58 tok/s."""
    boxes = [f"{box.name} {size(box.used)} of {size(box.limit)}" for box in plan.boxes if box.name != "SSD"]
    parts = [", ".join(boxes), f"{plan.context:,} tokens of context"]
    if plan.cards:
        count = census.config.experts
        held = f"{min(plan.slots)} of {count} experts a layer in VRAM"
        parts.append("everything in VRAM" if plan.resident else held)
    if plan.reads_ssd:
        parts.append(f"{size(plan.box('SSD').bytes_of('experts'))} of experts stay on the SSD")
    if plan.speed is not None:
        parts.append(f"about {plan.speed.flat.rate:.0f} tok/s")
    return "Plan: " + "; ".join(parts) + "."


def _what_would(machine: Machine, wish: Wish) -> str:
    from .check import best_of

    best = best_of(machine, wish)
    if best is None:
        return "of the published models that jubako knows none fits either"
    tight = ", if tightly" if best.judgement.verdict == "tight" else ""
    name = best.known.name
    return f"{name} ({size(best.known.size or best.census.total)}) would{tight}: {program.name} pull {name}"
