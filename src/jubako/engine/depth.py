"""How deep to draft: what a step costs by its width, against the tokens it gives on average.

Estimates start hopeful and drift back to hope while nothing is learned about them, so that what was given up is tried
again now and then. They steer speed alone, never the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from .executor import STEP_COLUMNS
from .suffix import LONGEST, SHORTEST

HOPE = 0.8  # probability that a draft of the draft layer is right, before anything is known
SUFFIX_HOPE = (0.4, 0.6, 0.75, 0.85)  # of a suffix's next token, by the length of the match: see _class
PRIOR_TRIALS, FADE = 2.0, 0.03  # weight of hope in trials, and what trials lose of theirs with each step
LEARN, FORGET = 0.1, 0.004  # of times: weight of a new one, and of hope while there is none
FLAT = 0.05  # hoped growth of a step's time with each further column


class Plan(NamedTuple):
    """Who proposes in a step ("none", "layer", "suffix", "rules") and how many drafts."""

    proposer: str
    depth: int


class Costs:
    """Seconds that a step's parts take on this executor, shared by its sequences: running means without outliers."""

    def __init__(self) -> None:
        self.verify: list[float | None] = [None] * (STEP_COLUMNS + 1)  # by columns, of all sequences together
        self.draft_pass: float | None = None
        self._steps: list[float] = []  # by columns, known or guessed; empty when something was learned since

    def step(self, columns: int, passes: int) -> float:
        """A step with so many columns after so many passes of the draft layer."""
        if not self._steps:
            self._steps = [self._hoped(n) if known is None else known for n, known in enumerate(self.verify)]
        return self._steps[min(columns, STEP_COLUMNS)] + passes * (self.draft_pass or 0.0)

    def learn(self, columns: int, verify: float, passes: int, draft: float) -> None:
        """What a step took; draft: 0 if its drafts were not timed."""
        self._steps = []
        self.verify[columns] = _mean(self.verify[columns], verify)
        if passes and draft:
            self.draft_pass = _mean(self.draft_pass, draft / passes)
        for other, known in enumerate(self.verify):
            if known is not None and other != columns:
                self.verify[other] = known + FORGET * (min(known, self._between(other)) - known)

    def _hoped(self, columns: int) -> float:
        """Of a width that was not tried. Fewer columns than were ever tried may cost only their part, as they do where
        each asks for experts in main memory: without that hope nobody would see that drafts do not pay."""
        least, known = next(((n, ms) for n, ms in enumerate(self.verify) if ms is not None), (columns, 0.0))
        return known * columns / least if columns < least else self._between(columns)

    def _between(self, columns: int) -> float:
        """From the nearest narrower and wider steps that are known."""
        known = [(n, ms) for n, ms in enumerate(self.verify) if ms is not None and n != columns]
        below = max((k for k in known if k[0] < columns), default=None)
        above = min((k for k in known if k[0] > columns), default=None)
        if below and above:
            return below[1] + (above[1] - below[1]) * (columns - below[0]) / (above[0] - below[0])
        n, ms = below or above or (1, 1.0)
        return ms * (1 + FLAT * (columns - 1)) / (1 + FLAT * (n - 1))


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + LEARN * (min(now, 2 * before) - before)


class Rate:
    """The share of trials that went well lately, `prior` to begin with and again when there were none for long."""

    def __init__(self) -> None:
        self.trials = self.right = 0.0

    def of(self, prior: float) -> float:
        return (self.right + PRIOR_TRIALS * prior) / (self.trials + PRIOR_TRIALS)

    def learn(self, right: bool | None) -> None:
        """One step's outcome, None if it was not tried."""
        self.trials, self.right = (1 - FADE) * self.trials, (1 - FADE) * self.right
        if right is not None:
            self.trials, self.right = self.trials + 1, self.right + right


class Acceptance:
    """How often drafts of one sequence are right, given that those before them in the step were.

    The draft layer's by place in the step; a place not tried yet is thought as good as the one before. A suffix's by
    the length of its match.
    """

    def __init__(self, most: int) -> None:
        self.layer = [Rate() for _ in range(most)]
        self.suffix = [Rate() for _ in SUFFIX_HOPE]

    def tokens(self, proposer: str, most: int, match: int) -> list[float]:
        """Expected tokens of a step with 1, 2 … `most` drafts: 1 + α1 + α1 α2 + …"""
        if proposer == "suffix":
            kind = _class(match)
            rates: Iterator[float] = repeat(self.suffix[kind].of(SUFFIX_HOPE[kind]), most)
        else:
            rates = accumulate(self.layer[:most], lambda alpha, rate: rate.of(alpha), initial=HOPE)
            next(rates)
        all_right = accumulate(rates, mul)
        return list(accumulate(all_right, initial=1.0))[1:]

    def learn_layer(self, made: int, right: int) -> None:
        """`right` of `made` drafts agreed; the one after them did not."""
        for place, rate in enumerate(self.layer):
            rate.learn(place < right if place < min(right + 1, made) else None)

    def learn_suffix(self, match: int, made: int, right: int) -> None:
        """The same for a suffix match, proposed or not."""
        for place in range(min(right + 1, made)):
            self.suffix[_class(match)].learn(place < right)


def _class(match: int) -> int:
    """Matches of 3, 4 to 7, 8 to 15, 16 and more tokens."""
    return min(len(SUFFIX_HOPE) - 1, match.bit_length() - 2) if SHORTEST <= match <= LONGEST else 0


def best_plan(costs: Costs, acceptance: Acceptance, layer: int, suffix: int, match: int, sequences: int) -> Plan:
    """The proposer and depth that promise most tokens per second, for `sequences` that do the same.

    layer, suffix: most drafts of the two proposers.
    """
    best, rate = Plan("none", 0), 1 / costs.step(sequences, 0)
    for proposer, most in (("layer", layer), ("suffix", suffix)):
        for depth, tokens in enumerate(acceptance.tokens(proposer, most, match), 1):
            promise = tokens / costs.step(sequences * (depth + 1), depth if proposer == "layer" else 0)
            if promise > rate:
                best, rate = Plan(proposer, depth), promise
    return best
