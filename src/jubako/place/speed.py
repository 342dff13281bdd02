"""Predicted speed: a time per step made of named terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Term:
    """One cause of a step's time. seconds: what it takes; hidden: of these, what passes beside something longer."""

    name: str
    seconds: float
    why: str
    hidden: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """A step (or a prompt) of `tokens` tokens as the sum of its terms, hidden parts left out."""

    tokens: float
    terms: tuple[Term, ...]
    hit_rate: float = 1.0  # of the routed experts, those found in video memory

    @property
    def seconds(self) -> float:
        return sum(term.seconds - term.hidden for term in self.terms)

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.tokens / self.seconds

    @property
    def limit(self) -> Term:
        """The term that takes most."""
        return max(self.terms, key=lambda term: term.seconds - term.hidden)


@dataclass(frozen=True)
class Speed:
    """What a plan is to reach.

    flat, skewed   decoding without drafts, by how evenly experts are chosen (`synth` defines both)
    drafted        decoding with `drafts` drafts a step, None where they gain nothing
    limits         tokens/s if each part ran as fast as it does alone and nothing were lost where they meet
                   (factors.APART): "flat", "skewed", and prompts by length
    prompts        by length in tokens, from an empty context
    """

    flat: Estimate
    skewed: Estimate
    prompts: dict[int, Estimate]
    drafted: Estimate | None = None
    drafts: int = 0
    limits: Mapping[str | int, float] = field(default_factory=dict)
