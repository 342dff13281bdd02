"""The executor of device="reference": the specification itself, in float32 torch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from ..arch.reference import GdnState, Reference, State
from ..arch.weights import Network


class ReferenceState:
    """A reference state, and copies of it after each token of the last step."""

    def __init__(self, now: State) -> None:
        self.now = now
        self.steps: list[State] = []

    def keep(self, count: int) -> None:
        """See `executor.State.keep`."""
        assert 1 <= count <= len(self.steps), "only tokens of the last step can be taken back"
        self.now = self.steps[count - 1]
        del self.steps[count:]


class ReferenceExecutor:
    """Runs `arch.reference.Reference`. Slow, exact, and the twin that every other executor is held against."""

    def __init__(self, network: Network) -> None:
        self.config = network.config
        self._reference = Reference(network)

    def new_state(self, context: int) -> ReferenceState:
        """An empty state; it grows with what it reads, so `context` needs no room beforehand."""
        return ReferenceState(self._reference.new_state())

    def forward(self, ids: Sequence[int], state: ReferenceState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        state.steps = []
        return self._reference.forward(ids, state.now, [len(ids) - 1] if last_only else None).numpy()

    def step(self, parts: Sequence[tuple[Sequence[int], ReferenceState]]) -> list[np.ndarray]:
        """See `Executor.step`. Tokens are read one after the other, so that there is a state after each."""
        return [self._step(ids, state) for ids, state in parts]

    def _step(self, ids: Sequence[int], state: ReferenceState) -> np.ndarray:
        state.steps, logits = [], []
        for id in ids:
            state.now = _copied(state.now)
            logits.append(self._reference.forward([id], state.now).numpy())
            state.steps.append(state.now)
        return np.concatenate(logits)


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
