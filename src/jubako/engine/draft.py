"""Speculative decoding: x is sure, a proposer guesses d1 … dγ, the network reads x d1 … dγ in one step, and each token
is chosen from the column before it exactly as without drafts; the guesses that agree were read for almost nothing.

Leviathan et al. (arXiv 2211.17192) choose by rejection. Here the draft is drawn with the random number of the position
that will verify it (text.sampling), so that both draws mostly agree and the text is what the seed gives without drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ..core import TokenChoice, whole
from ..errors import JubakoError, RequestError
from .answer import Answer
from .depth import Acceptance, Costs, Plan, best_plan
from .executor import STEP_COLUMNS, DraftWish, Executor
from .logits import Logits, Row, sample
from .suffix import SuffixIndex

LAYER_MOST, SUFFIX_MOST = 6, STEP_COLUMNS - 1  # drafts a step where the caller sets no limit


@dataclass(frozen=True)
class DraftOptions:
    """most: drafts a step, None for what pays. fixed: always `most`, all from the draft layer, whatever that gains.
    floor: a draft to which the draft layer gives less probability ends the drafts of its step."""

    most: int | None = None
    fixed: bool = False
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.most is not None and not 0 <= whole("drafts", self.most) < STEP_COLUMNS:
            raise RequestError(f"drafts is {self.most}; it must lie between 0 and {STEP_COLUMNS - 1}")
        if self.fixed and self.most is None:
            raise RequestError("fixed drafts need their number")
        if not 0 <= self.floor <= 1:
            raise RequestError(f"the floor of drafts is {self.floor}; it must lie between 0 and 1")


class Speculation:
    """The speculative side of one answer, on a `state` that has read `text` (its prompt).

    keep: what is told how many columns stay, `state.keep` by default. Counts steps and drafts in the answer's `stats`.
    """

    def __init__(
        self,
        answer: Answer,
        state: Any,
        text: Sequence[int],
        options: DraftOptions,
        keep: Callable[[int], None] | None = None,
    ) -> None:
        self.answer, self.state, self.options = answer, state, options
        self.keep = keep or state.keep
        self.layer_most = LAYER_MOST if options.most is None else options.most
        self.suffix_most = 0 if options.fixed else SUFFIX_MOST if options.most is None else options.most
        self.acceptance = Acceptance(self.layer_most)
        self.columns: list[int] = []  # x d1 … dγ
        self.plan = Plan("none", 0)
        self._suffixes = SuffixIndex(text if self.suffix_most else ())
        self._match, self._guess = 0, list[int]()

    def prepare(self, costs: Costs, most: int, sequences: int, layer: bool) -> Plan:
        """Choose the proposer and γ, so that at most `most` columns are read. layer: whether there is a draft layer."""
        most = min(most, self.answer.left) - 1
        deepest = min(self.layer_most, most) if layer else 0
        free = min(self.suffix_most, most)
        if self.options.fixed:
            self.plan = Plan("layer", deepest)
        elif free > 0 and (forced := self.answer.sampler.forced()):
            self._match, self._guess = 0, forced[:free]
            self.plan = Plan("rules", len(self._guess))
        else:
            self._match, self._guess = self._suffixes.propose(free)
            self.plan = best_plan(costs, self.acceptance, deepest, len(self._guess), self._match, sequences)
        return self.plan

    def wish(self) -> DraftWish:
        """γ drafts of the draft layer, drawn as the answer itself will draw at their positions."""
        if self.answer.sampler.greedy and self.options.floor == 0:
            return DraftWish(self.columns[0], self.state, self.plan.depth)
        ahead, position, floor = self.answer.sampler.copy(), self.answer.position, self.options.floor

        def pick(row: Row) -> int | None:
            nonlocal position
            try:
                token = -1 if ahead.finished else sample(ahead, row, position)
                if token < 0 or (floor > 0 and probability(row.logits, token) < floor):
                    return None
                ahead.accept(token)
            except JubakoError:  # broken numbers or a rule's dead end: if it is the answer's too, that will say so
                return None
            position += 1
            return token

        return DraftWish(self.columns[0], self.state, self.plan.depth, pick)

    def guess(self) -> list[int]:
        """γ tokens that the rules force, or that followed the same words before as far as the rules allow them."""
        ahead, guess = self.answer.sampler.copy(), list[int]()
        with suppress(JubakoError):
            guess.extend(takewhile(ahead.allows, self._guess[: self.plan.depth]))
        return guess

    def accept(self, rows: Sequence[Row]) -> list[TokenChoice]:
        """Choose after each of the γ+1 columns for as long as the drafts agree; the state keeps what was right.

        The last token chosen is the next step's x. A prompt's last row gives the first token. Raises what the first
        choice does; what a later one does waits for the next step, which meets it behind the tokens of this one.
        """
        drafts, chosen = self.columns[1:], list[TokenChoice]()
        for row, draft in zip(rows, [*drafts, -1], strict=True):
            try:
                choice = self.answer.choose(row)
            except JubakoError:
                if not chosen:
                    raise
                break
            if choice is not None:
                chosen.append(choice)
            if choice is None or choice.id != draft or self.answer.finish_reason:
                break
        tokens = [choice.id for choice in chosen]
        if self.columns:
            self.keep(len(tokens) + (choice is None))
            self._count(drafts, tokens)
        self._suffixes.extend(tokens if self.suffix_most else ())
        self.columns = tokens[-1:]
        return chosen

    def _count(self, drafts: list[int], tokens: list[int]) -> None:
        """Learn from a step, and add it to the answer's figures."""
        right = _agreeing(drafts, tokens)
        stats = self.answer.stats
        stats.steps += 1
        for counts, places in ((stats.drafted, len(drafts)), (stats.accepted, right)):
            counts += [0] * (places - len(counts))
            for place in range(places):
                counts[place] += 1
        if self.plan.proposer == "layer":
            self.acceptance.learn_layer(len(drafts), right)
        if self._match:
            known = min(len(self._guess), len(tokens))
            self.acceptance.learn_suffix(self._match, known, _agreeing(self._guess, tokens))


def _agreeing(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """How many drafts come true before one does not."""
    pairs = zip(drafts, tokens, strict=False)
    return next((place for place, (d, t) in enumerate(pairs) if d != t), min(len(drafts), len(tokens)))


def verify(executor: Executor, costs: Costs, runs: Sequence[Speculation], most: int = STEP_COLUMNS) -> list[Logits]:
    """Propose for all runs and read their columns, `most` at most, in one pass: logits for each run to accept from."""
    started = time.perf_counter()
    drafting = [run for run in runs if run.prepare(costs, most // len(runs), len(runs), executor.drafts).depth]
    wishing = [run for run in drafting if run.plan.proposer == "layer"]
    if len(wishing) == len(runs):
        drafted, logits, seconds = executor.speculate([run.wish() for run in runs])
        _take(wishing, drafted)
    else:
        drafted = executor.draft([run.wish() for run in wishing]) if wishing else []
        _take(wishing, drafted)
        for run in drafting:
            if run.plan.proposer in ("suffix", "rules"):
                run.columns += run.guess()
        seconds = time.perf_counter() - started
        logits = executor.step([(run.columns, run.state) for run in runs])
    whole = time.perf_counter() - started
    passes = max((len(drafts) for drafts in drafted), default=0)
    costs.learn(sum(len(run.columns) for run in runs), whole - seconds, passes, seconds)
    for run in runs:
        run.answer.stats.draft_seconds += seconds / len(runs)
    return logits


def _take(runs: Sequence[Speculation], drafted: Sequence[Sequence[int]]) -> None:
    """Add drafts to the columns of their runs."""
    for run, drafts in zip(runs, drafted, strict=True):
        run.columns += drafts


def probability(logits: np.ndarray, token: int) -> float:
    """Of a token at temperature 1."""
    weights = np.exp(logits - logits[token])
    return 1 / float(weights.sum(dtype=np.float64))
