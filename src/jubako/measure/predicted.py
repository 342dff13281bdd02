"""What the plan promised, for benchmarks to print beside what they measured."""

from __future__ import annotations

from pathlib import Path

from ..arch.weights import Network
from ..place.census import Census, take_census
from ..place.fit import make_plan
from ..place.machine import Machine
from ..place.plan import Plan, Wish
from ..place.probe import this_machine
from ..place.routing import flat
from ..place.speeds import prompt, step


class Predictor:
    """A plan for a network on this machine, made before it is loaded, and its speeds at any depth, routing flat."""

    def __init__(self, census: Census, machine: Machine, plan: Plan) -> None:
        self.census, self.machine, self.plan = census, machine, plan
        self._even = flat(census.config.experts, census.config.experts_used)

    @classmethod
    def here(cls, network: Network, place: Path, wish: Wish) -> Predictor | None:
        """For this machine; None where the plan says that it does not fit. Measures briefly without a stored probe."""
        census = take_census(network)
        machine = this_machine(census.kinds, place)
        plan = make_plan(census, machine, wish)
        return cls(census, machine, plan) if plan.fits else None

    def decode(self, depth: int, columns: int = 1) -> float:
        """Tokens/s of steps of so many columns."""
        return step(self.census, self.machine, self.plan, self._even, depth, columns).rate

    def prefill(self, tokens: int) -> float:
        """Tokens/s of a prompt."""
        return prompt(self.census, self.machine, self.plan, self._even, tokens).rate
