"""What the plan promised, for benchmarks to print beside what they measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..arch.weights import Network
from ..place.census import Census, take_census
from ..place.fit import make_plan
from ..place.machine import Machine
from ..place.plan import Plan, Wish
from ..place.probe import this_machine
from ..place.routing import flat
from ..place.speeds import prompt, step

if TYPE_CHECKING:
    from .gpu_figures import GpuReport


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

    def beside(self, report: GpuReport) -> list[dict[str, float | str]]:
        """Each step and prompt of a GPU's report with its prediction: milliseconds, and measured over predicted.

        Steps are those asked for by the host; prompts those from an empty context.
        """
        rows = [
            (f"step of {s.width} after {s.depth:,}", s.host, 1000 * s.width / self.decode(s.depth, s.width))
            for s in report.steps
            if s.sequences == 1
        ]
        rows += [
            (f"prompt of {p.tokens:,}", 1000 * p.seconds, 1000 * p.tokens / self.prefill(p.tokens))
            for p in report.prompts
            if not p.depth
        ]
        return [
            {"what": what, "measured": measured, "predicted": predicted, "ratio": measured / predicted}
            for what, measured, predicted in rows
        ]


def table(rows: Iterable[Mapping[str, float | str]]) -> str:
    """`Predictor.beside` as Markdown."""
    lines = ["## Beside the plan", "", "| | measured, ms | plan, ms | |", "|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['what']} | {row['measured']:.2f} | {row['predicted']:.2f} | {float(row['ratio']) - 1:+.0%} |"
        )
    return "\n".join(lines)
