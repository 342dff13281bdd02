"""What runs the network: the same three verbs whatever the device.

`forward` feeds tokens to a state and gives logits; everything above (sessions, generation) speaks only this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..arch.config import Config

State = Any  # an executor's own; nothing above looks inside


class Executor(Protocol):
    """Runs one network on one device."""

    config: Config

    def new_state(self, context: int) -> State:
        """An empty state with room for `context` tokens. Raises MachineError if that does not fit in memory."""

    def forward(self, ids: Sequence[int], state: State, *, last_only: bool) -> np.ndarray:
        """Feed `ids` at the end of `state`; float32 logits [len(ids), vocabulary], or [1, vocabulary] of the last."""
