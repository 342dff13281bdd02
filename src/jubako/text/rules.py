"""What may come next in an answer: rules that the sampler asks before each token and tells of each token.

A rule sees the answer's tokens only, never the prompt's. Several rules hold at once: a token must pass all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..core import Request
from .thinking import ThinkingRule
from .tokenizer import Tokenizer


class TokenRule(Protocol):
    """One rule over one answer. A copy goes its own way, so that drafts can be masked ahead of the answer."""

    def allowed(self) -> np.ndarray | None:
        """bool [vocabulary] of the tokens that may come next, None for all; the rule's own, valid until `accept`."""

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as the rule knows: good drafts. Mostly none."""

    def accept(self, token: int) -> None:
        """`token` is now part of the answer."""

    def copy(self) -> TokenRule:
        """The same rule in the same state."""

    @property
    def finished(self) -> bool:
        """Whether nothing may follow: the answer ends here, with finish reason "stop"."""


def build_rules(request: Request, tokenizer: Tokenizer, vocabulary: int) -> list[TokenRule]:
    """The rules of a request; `vocabulary` is the number of logits. Raises RequestError where one can't be honoured.

    End tokens are allowed exactly where the answer may end: the request's `stop_ids`.
    """
    rules: list[TokenRule] = []
    if request.thinking is not None:
        rules.append(ThinkingRule(request.thinking, vocabulary))
    if request.constraint is not None:
        from .grammar import grammar_rule  # whose library only constrained answers need

        rules.append(grammar_rule(request.constraint, tokenizer, vocabulary, request.stop_ids))
    return rules


def allowed_tokens(rules: Sequence[TokenRule]) -> np.ndarray | None:
    """The tokens that pass all of the rules, None for all: bool [vocabulary], not to be written to."""
    mask: np.ndarray | None = None
    for rule in rules:
        allowed = rule.allowed()
        if allowed is not None:
            mask = allowed if mask is None else mask & allowed
    return mask
