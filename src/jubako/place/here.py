"""The plan for a network on this machine, as the engine asks for it: nothing is measured for it."""

from __future__ import annotations

from pathlib import Path

from ..arch.weights import Network
from .census import take_census
from .fit import make_plan
from .plan import Plan, Wish
from .probe import known_or_nominal


def plan_here(network: Network, place: Path, wish: Wish) -> Plan:
    """By the stored probe where there is one; else by this machine's sizes alone, with rates that are a guess.

    place: a file of the model, or its folder. A plan that can't be kept says why in `short`.
    """
    return make_plan(take_census(network), known_or_nominal(place), wish)
