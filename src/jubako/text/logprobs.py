"""Log probabilities of the network's own distribution: temperature 1, without penalties, bias, filters or rules."""

from __future__ import annotations

import numpy as np

from ..core import TokenChoice
from .sampling import largest_ids


def with_logprobs(token: int, logits: np.ndarray, top: int) -> TokenChoice:
    """`token`, chosen from logits [V], with the `top` likeliest."""
    largest = logits.max()
    total = float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    likeliest = largest_ids(logits, top).tolist() if top else list[int]()
    return TokenChoice(token, float(logits[token]) - total, tuple((id, float(logits[id]) - total) for id in likeliest))
