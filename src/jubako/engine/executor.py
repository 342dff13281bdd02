"""What runs the network: the same few verbs whatever the device. Everything above speaks only these.

`forward` reads a prompt, `step` a few tokens of one or more sequences; then `State.keep` says which of them stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..arch.config import Config
from .logits import Logits, Row

STEP_COLUMNS = 16  # tokens of a step, at most


class State(Protocol):
    """What a device remembers of one sequence."""

    def keep(self, count: int) -> None:
        """Accept the first `count` (at least one) of the tokens that the last step read, forget the others.

        In constant time; may be called again with less. Reading on without it accepts them all.
        """


class DraftWish(NamedTuple):
    """What the draft layer shall guess for one sequence.

    next   the token that comes next for sure, which the state has not read yet
    depth  drafts wanted, at most
    pick   the draft for a row of logits, None to stop there; where `pick` is None the likeliest token is taken
    """

    next: int
    state: Any
    depth: int
    pick: Callable[[Row], int | None] | None = None


class Speculated(NamedTuple):
    """By wish: its drafts, and the logits after its `next` and them. seconds: what of the step was drafting."""

    drafts: list[list[int]]
    logits: list[Logits]
    seconds: float


class Executor(Protocol):
    """Runs one network on one device."""

    config: Config
    drafts: bool
    """Whether there is a draft layer."""

    def new_state(self, context: int) -> Any:
        """An empty state with room for `context` tokens. Raises MachineError if that does not fit in memory."""

    def forward(self, ids: Sequence[int], state: Any, *, last_only: bool) -> np.ndarray:
        """Feed `ids` at the end of `state`; float32 logits [len(ids), vocabulary], or [1, vocabulary] of the last."""

    def step(self, parts: Sequence[tuple[Sequence[int], Any]]) -> list[Logits]:
        """Read a few ids (16 in all parts together, at most) at the end of each state, in one pass.

        Gives the logits after each id, per part. A token's bits do not depend on the others. The states, each of
        another sequence, may take tokens back afterwards: see `State.keep`.
        """

    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """Up to `depth` tokens for each wish, of as many sequences: guesses at what follows its `next`.

        The draft layer first reads what was accepted since its last call. Only with `drafts`.
        """

    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """`draft`, then `step` with each wish's `next` and its drafts; where it can, without waiting in between."""


def draft_then_step(executor: Executor, wishes: Sequence[DraftWish]) -> Speculated:
    """`Executor.speculate` one after the other."""
    started = time.perf_counter()
    drafts = executor.draft(wishes)
    seconds = time.perf_counter() - started
    parts = [([wish.next, *line], wish.state) for wish, line in zip(wishes, drafts, strict=True)]
    return Speculated(drafts, executor.step(parts), seconds)
