"""Choosing the next token from the logits.

Order: penalties, bias, rules, temperature, top-k, top-p, min-p, draw. A draw is a race: every token that is left runs
for -log(u) / weight, where u depends on (seed, position, token) alone, and the first one wins; that is its probability.
Two slightly different distributions at one position, such as a draft's and the network's own, therefore mostly give
the same token (Gumbel coupling: at least (1-d)/(1+d) for a total variation distance d).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from ..core import SamplingParams
from ..errors import JubakoError, RequestError
from .rules import TokenRule, allowed_tokens

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GROUP = 64  # logits that share a maximum when looking for the largest ones, at most
_FIRST_CANDIDATES = 64
_GREEDY = 1e-6  # lower temperatures are greedy; the divisions below would overflow


def uniforms(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Numbers in (0, 1) from the counters (seed, position, id), float64."""
    return ((_hashes(seed, position, ids) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _hashes(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """64 random bits for each id: splitmix64 (Steele, Lea & Flood 2014)."""
    start = _splitmix64((_splitmix64(seed & _MASK) + position * _GOLDEN) & _MASK)
    z = ids.astype(np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64((start + _GOLDEN) & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _splitmix64(state: int) -> int:
    z = (state + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Sampler:
    """Samples one sequence. `seed` is the one in use, drawn afresh where the parameters name none.

    bias (OpenAI's logit_bias): what is added to the logits of some tokens. rules: see `text.rules`.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        bias: Iterable[tuple[int, float]] = (),
        rules: Sequence[TokenRule] = (),
    ) -> None:
        self.params = params
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self._penalties = _Penalties(params, prompt_ids)
        self._bias = dict(bias)
        self._rules = list(rules)

    def copy(self) -> Sampler:
        """The same sampler in the same state, to look ahead with."""
        other = copy(self)
        other._penalties = self._penalties.copy()
        other._rules = [rule.copy() for rule in self._rules]
        return other

    @property
    def greedy(self) -> bool:
        """Whether `sample` gives the likeliest token, whatever the logits are."""
        return self.params.temperature < _GREEDY and not (self._penalties.active or self._bias or self._rules)

    def sample_largest(self, ids: np.ndarray, logits: np.ndarray, position: int) -> int | None:
        """What `sample` gives, from only some of the largest logits and their ids; None where that takes all of them.

        Of those given, any order will do; the others are at most as large as the least of them.
        """
        count = self.params.top_k
        plain = not (self._penalties.active or self._bias or self._rules)
        if self.params.temperature < _GREEDY or not plain or not 0 < count < len(ids) or np.isnan(logits).any():
            return None
        order = np.lexsort((ids, -logits))[: count + 1]
        ids, logits = ids[order], logits[order]
        if not math.isfinite(logits[0]) or not math.isfinite(logits[count]) or logits[count] == logits[count - 1]:
            return None
        ids, weights = ids[:count], self._weights(logits[:count], logits[0])
        return int(ids[self._race(ids, self._filtered_weights(weights, float(weights.sum())), position)[0]])

    @property
    def finished(self) -> bool:
        """Whether a rule says that nothing may follow."""
        return any(rule.finished for rule in self._rules)

    def forced(self) -> list[int]:
        """Tokens that a rule leaves no choice about, from the next one on."""
        return next((tokens for rule in self._rules if (tokens := rule.forced())), [])

    def accept(self, token: int) -> None:
        """Tell that `token` is now part of the text; penalties and rules count it from here on."""
        self._penalties.count(token)
        for rule in self._rules:
            rule.accept(token)

    def allows(self, token: int) -> bool:
        """Accept `token` if the rules let it come next; whether they do."""
        allowed = None if self.finished else allowed_tokens(self._rules)
        if self.finished or (allowed is not None and not allowed[token]):
            return False
        self.accept(token)
        return True

    def sample(self, logits: np.ndarray, position: int) -> int:
        """The token for `position` (its index in the sequence) from logits [V], which stay as they are.

        -inf bars a token; NaN, +inf, or -inf everywhere raises JubakoError. Of equal logits the lowest id comes first.
        """
        logits = self._biased(self._penalties.apply(np.asarray(logits, np.float32)))
        allowed = allowed_tokens(self._rules)
        if allowed is None:
            return self._choose(logits, None, position)
        count = np.count_nonzero(allowed)
        if count == 0:
            raise JubakoError(f"no token may come at position {position}: the rules of this answer exclude each other")
        if count > len(logits) // 4:
            return self._choose(np.where(allowed, logits, np.float32(-np.inf)), None, position)
        ids = np.flatnonzero(allowed)
        return int(ids[self._choose(logits[ids], ids, position)])

    def _biased(self, logits: np.ndarray) -> np.ndarray:
        if not self._bias:
            return logits
        ids = np.fromiter(self._bias, np.int64, len(self._bias))
        if ids.min() < 0 or ids.max() >= len(logits):
            raise RequestError(f"logit_bias: token id {ids.max()} or {ids.min()} is not in the vocabulary")
        logits = logits.copy()
        logits[ids] += np.fromiter(self._bias.values(), np.float32, len(ids))
        return logits

    def _choose(self, logits: np.ndarray, ids: np.ndarray | None, position: int) -> int:
        """Index into logits, which are those of the tokens `ids` (None: of all)."""
        largest = float(logits.max())
        if not math.isfinite(largest):
            raise JubakoError(
                f"the largest logit at position {position} is {largest}; the network's numbers broke down"
            )
        if self.params.temperature < _GREEDY:
            return int(logits.argmax())
        return self._draw(logits, ids, np.float32(largest), position)

    def _draw(self, logits: np.ndarray, ids: np.ndarray | None, largest: np.float32, position: int) -> int:
        def named(indices: np.ndarray) -> np.ndarray:
            return indices if ids is None else ids[indices]

        indices, weights, total = self._candidates(logits, largest)
        weights = self._filtered_weights(weights, total)
        first, time = self._race(named(indices), weights, position)
        if len(indices) < len(logits) and not self._filtered():
            # A token beyond the candidates wins only with a u so large.
            bound = int(math.exp(-float(time * weights[-1])) * (1 - 1e-9) * 2.0**64)
            names = np.arange(len(logits)) if ids is None else ids
            others = np.flatnonzero(_hashes(self.seed, position, names) > np.uint64(bound))
            others = others[logits[others] > -np.inf]
            if len(others):
                late = -np.log(uniforms(self.seed, position, named(others))) / self._weights(logits[others], largest)
                if late.min() < time:
                    return int(others[late.argmin()])
        return int(indices[first])

    def _filtered_weights(self, weights: np.ndarray, total: float) -> np.ndarray:
        """Of candidates' weights in falling order those that top-p and min-p leave."""
        if self.params.top_p < 1:
            keep = np.cumsum(weights) - weights < self.params.top_p * total
            keep[0] = True
            weights = weights[keep]
        if self.params.min_p > 0:
            weights = weights[weights >= self.params.min_p * weights[0]]
        return weights[weights > 0]

    def _race(self, names: np.ndarray, weights: np.ndarray, position: int) -> tuple[int, float]:
        """Which of the first `names` wins, one for each weight, and its time."""
        times = -np.log(uniforms(self.seed, position, names[: len(weights)])) / weights
        first = int(times.argmin())
        return first, float(times[first])

    def _filtered(self) -> bool:
        params = self.params
        return bool(params.top_k) or params.top_p < 1 or params.min_p > 0

    def _candidates(self, logits: np.ndarray, largest: np.float32) -> tuple[np.ndarray, np.ndarray, float]:
        """The likeliest tokens, all that the filters leave; without filters some.

        Returns indices, weights exp((logit - largest) / temperature) in falling order, and their sum after top-k.
        """
        params = self.params
        total = 0.0
        if params.top_k:
            ids = largest_ids(logits, params.top_k)
        elif params.top_p < 1:
            shares = np.exp((logits - largest) / np.float32(params.temperature))
            total = float(shares.sum(dtype=np.float64))
            # all tokens below that weigh less than 1 - top_p together
            ids = _falling(
                logits, np.flatnonzero(shares >= np.float32(0.999 * (1 - params.top_p) * total / len(shares)))
            )
        elif params.min_p > 0:
            lowest = largest + np.float32(params.temperature * math.log(params.min_p) - 1e-3)
            ids = _falling(logits, np.flatnonzero(logits >= lowest))
        else:
            ids = largest_ids(logits, _FIRST_CANDIDATES)
        weights = self._weights(logits[ids], largest)
        return ids, weights, total or float(weights.sum())

    def _weights(self, logits: np.ndarray, largest: np.float32) -> np.ndarray:
        return np.exp((logits - largest).astype(np.float64) / self.params.temperature)


def largest_ids(logits: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` largest logits, largest first, equal ones by rising id; -inf is never among them.

    The logits are cut into groups; only those that reach the count-th largest maximum of a group can be among them, so
    that little is sorted.
    """
    floor = np.float32(-np.inf)
    size = max(1, min(_GROUP, len(logits) // (4 * count)))
    groups = len(logits) // size
    if count <= groups:
        maxima = logits[: groups * size].reshape(size, groups).max(axis=0)
        floor = np.partition(maxima, groups - count)[groups - count]
    return _falling(logits, np.flatnonzero(logits >= floor if floor > -np.inf else logits > floor))[:count]


def _falling(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """`ids` by falling logit, equal ones by rising id. Sorting integers is what numpy does fastest."""
    bits = (logits[ids] + np.float32(0)).view(np.int32)  # adding 0 makes -0 and 0 the same
    falling = np.where(bits < 0, bits & 0x7FFFFFFF, ~bits).astype(np.int64)
    return np.sort((falling << 32) | ids) & 0xFFFFFFFF


class _Penalties:
    """Which tokens were seen and how often, and what that does to their logits.

    repetition (Keskar et al. 2019) divides positive and multiplies negative logits of every token in prompt or text;
    frequency and presence (OpenAI) subtract per occurrence and once, for the generated text only.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._params = params
        self._repetition = params.repetition_penalty != 1
        self.active = self._repetition or params.frequency_penalty != 0 or params.presence_penalty != 0
        self._slots: dict[int, int] = {}  # token -> its place in the two arrays
        self._ids = np.zeros(1024, np.int64)
        self._counts = np.zeros(1024, np.float32)  # occurrences in the generated text
        if self._repetition:
            for token in prompt_ids:
                self._slot(token)

    def copy(self) -> _Penalties:
        other = copy(self)
        if self.active:
            other._slots = dict(self._slots)
            other._ids, other._counts = self._ids.copy(), self._counts.copy()
        return other

    def count(self, token: int) -> None:
        if self.active:
            slot = self._slot(token)  # may replace the arrays
            self._counts[slot] += 1

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(int(token), len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """The logits with penalties, a copy if there are any."""
        used = len(self._slots)
        if not used:
            return logits
        ids, counts = self._ids[:used], self._counts[:used]
        if ids.min() < 0 or ids.max() >= len(logits):
            raise RequestError(f"token id {ids.max()} or {ids.min()} is not in the vocabulary of {len(logits)}")
        logits = logits.copy()
        values = logits[ids]
        if self._repetition:
            penalty = np.float32(self._params.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        values -= np.float32(self._params.frequency_penalty) * counts
        values -= np.float32(self._params.presence_penalty) * (counts > 0)
        logits[ids] = values
        return logits
