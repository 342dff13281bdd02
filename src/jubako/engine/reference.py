"""The executor of device="reference": the specification itself, in float32 torch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch

from ..arch.reference import GdnState, Reference, State
from ..arch.weights import Network
from .executor import DraftWish, Speculated, draft_then_step
from .logits import Logits


class ReferenceState:
    """A reference state, and copies of it after each token of the last step.

    carry: the tokens that the draft layer has not read, each with the trunk's streams [1, S, H].
    """

    def __init__(self, now: State) -> None:
        self.now = now
        self.steps: list[State] = []
        self.carry: list[tuple[int, torch.Tensor]] = []

    def keep(self, count: int) -> None:
        """See `executor.State.keep`."""
        assert 1 <= count <= len(self.steps), "only tokens of the last step can be taken back"
        del self.carry[len(self.carry) - len(self.steps) + count :]
        del self.steps[count:]
        self.now = self.steps[-1]


class ReferenceExecutor:
    """Runs `arch.reference.Reference`. Slow, exact, and the twin that every other executor is held against."""

    def __init__(self, network: Network) -> None:
        self.config = network.config
        self.drafts = network.draft is not None
        self._reference = Reference(network)

    def new_state(self, context: int) -> ReferenceState:
        """An empty state; it grows with what it reads, so `context` needs no room beforehand."""
        return ReferenceState(self._reference.new_state())

    def forward(self, ids: Sequence[int], state: ReferenceState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        state.steps = []
        streams = self._read(ids, state)
        return self._reference.head(streams, [len(ids) - 1] if last_only else None).numpy()

    def step(self, parts: Sequence[tuple[Sequence[int], ReferenceState]]) -> list[Logits]:
        """See `Executor.step`. Tokens are read one after the other, so that there is a state after each."""
        return [Logits.of(self._step(ids, state)) for ids, state in parts]

    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """See `Executor.draft`. Every draft chooses its own blocks."""
        return [self._draft(wish) for wish in wishes]

    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """See `Executor.speculate`."""
        return draft_then_step(self, wishes)

    def _read(self, ids: Sequence[int], state: ReferenceState) -> torch.Tensor:
        streams = self._reference.residual(ids, state.now)
        if self.drafts:
            state.carry += zip(ids, streams[:, None], strict=True)
        return streams

    def _step(self, ids: Sequence[int], state: ReferenceState) -> np.ndarray:
        state.steps, logits = [], []
        for id in ids:
            state.now = _copied(state.now)
            logits.append(self._reference.head(self._read([id], state)).numpy())
            state.steps.append(state.now)
        return np.concatenate(logits)

    def _draft(self, wish: DraftWish) -> list[int]:
        state, drafts = wish.state, list[int]()
        ids = [*(id for id, _ in state.carry[1:]), wish.next]
        wide = torch.cat([streams for _, streams in state.carry])
        logits, wide = self._reference.draft(ids, wide, state.now)
        state.carry, state.steps = [], []
        ahead = _copied(state.now)
        while True:
            [row] = Logits.of(logits[-1:].numpy())
            token = int(row.logits.argmax()) if wish.pick is None else wish.pick(row)
            if token is None:
                return drafts
            drafts.append(token)
            if len(drafts) == wish.depth:
                return drafts
            logits, wide = self._reference.draft([token], wide[-1:], ahead)


def _copied(state: State) -> State:
    """A state that can be read on without changing the given one. Caches replace their tensors, they need no clones."""
    result = copy(state)
    result.layers = [
        GdnState(layer.conv.clone(), layer.memory.clone()) if isinstance(layer, GdnState) else copy(layer)
        for layer in state.layers
    ]
    result.draft = copy(state.draft)
    result.ngram = state.ngram.clone()
    return result
