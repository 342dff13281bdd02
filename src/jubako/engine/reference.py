"""The executor of device="reference": the specification itself, in float32 torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arch.reference import Reference, State
from ..arch.weights import Network


class ReferenceExecutor:
    """Runs `arch.reference.Reference`. Slow, exact, and the twin that every other executor is held against."""

    def __init__(self, network: Network) -> None:
        self.config = network.config
        self._reference = Reference(network)

    def new_state(self, context: int) -> State:
        """An empty state; it grows with what it reads, so `context` needs no room beforehand."""
        return self._reference.new_state()

    def forward(self, ids: Sequence[int], state: State, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        return self._reference.forward(ids, state, [len(ids) - 1] if last_only else None).numpy()
