"""Answers of a given form: JSON schema, any JSON object, regular expression or grammar as a mask over the tokens.

The masks come from llguidance. Control and user-defined tokens are never part of text; only a grammar that names a
token by its id, as in `<[7930]>`, gets it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from weakref import WeakKeyDictionary

import llguidance
import numpy as np

from ..core import Constraint
from ..errors import RequestError
from .grammar_source import grammar_source
from .grammar_tokens import grammar_tokens
from .grammar_worker import limits
from .tokenizer import Tokenizer

_KEPT = 32  # compiled grammars kept per vocabulary


class GrammarRule:
    """A TokenRule that keeps an answer to a grammar. `matcher` is this rule's own, `vocabulary` the number of logits.

    Until one of `after` comes everything is allowed, but the end only where the constraint is optional.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: llguidance.LLMatcher,
        tokens: int,
        vocabulary: int,
        stop_ids: Collection[int],
    ) -> None:
        self._constraint = constraint
        self._matcher = matcher
        self._stop_ids = sorted(id for id in stop_ids if 0 <= id < vocabulary)
        self._waiting = bool(constraint.after)
        self._mask = np.zeros(vocabulary, bool)
        self._bits = np.zeros(-(-tokens // 32), np.uint32)
        self._known = min(tokens, vocabulary)  # further logits are padding
        self._current = False  # whether the mask belongs to the present state

    def allowed(self) -> np.ndarray | None:
        """Raises RequestError where the grammar grows too complex to go on."""
        if self._waiting and (self._constraint.optional or not self._stop_ids):
            return None
        if not self._current:
            self._fill()
            self._current = True
        return self._mask

    def _fill(self) -> None:
        if self._waiting:
            self._mask[:] = True
            self._mask[self._stop_ids] = False
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._known, bitorder="little")
        self._mask[: self._known] = bits.view(bool)
        self._mask[self._stop_ids] = self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise RequestError(f"the answer can't follow the {self._constraint.kind} any further: {reason}")

    def forced(self) -> list[int]:
        return [] if self._waiting or self.finished else self._matcher.compute_ff_tokens()

    def accept(self, token: int) -> None:
        """Raises RequestError for a token that the mask bars."""
        self._current = False
        if self._waiting:
            self._waiting = token not in self._constraint.after
        elif token not in self._stop_ids:
            self._matcher.consume_token(token)
            self._check()

    def copy(self) -> GrammarRule:
        matcher = self._matcher.deep_copy()
        other = GrammarRule(self._constraint, matcher, 32 * len(self._bits), len(self._mask), self._stop_ids)
        other._known, other._waiting = self._known, self._waiting
        return other

    @property
    def finished(self) -> bool:
        return not self._waiting and self._matcher.is_stopped()


class _Grammars:
    """The compiled grammars of one vocabulary; those used last are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens = grammar_tokens(tokenizer)
        self._matchers: OrderedDict[tuple[str, bytes], llguidance.LLMatcher] = OrderedDict()
        self._bytes = [tokenizer.byte_id(byte) for byte in range(256)]
        self._lock = Lock()

    def matcher(self, constraint: Constraint) -> llguidance.LLMatcher:
        """A matcher of its own for one answer, past the constraint's prefix."""
        source = grammar_source(constraint)
        key = source, constraint.prefix
        with self._lock:
            found = self._matchers.pop(key, None) or self._compiled(source, constraint)
            self._matchers[key] = found
            if len(self._matchers) > _KEPT:
                self._matchers.popitem(last=False)
            return found.deep_copy()

    def _compiled(self, source: str, constraint: Constraint) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._tokens, source, log_level=0, limits=limits())
        if matcher.is_error():
            raise RequestError(f"the {constraint.kind} can't be honoured: {matcher.get_error().partition(chr(10))[0]}")
        read = matcher.try_consume_tokens([self._bytes[byte] for byte in constraint.prefix])
        if read < len(constraint.prefix):
            raise RequestError(
                f"the beginning of the answer does not fit the {constraint.kind}: "
                f"it goes wrong after {constraint.prefix[:read].decode('utf-8', 'replace')[-40:]!r}"
            )
        return matcher


_BY_TOKENIZER: WeakKeyDictionary[Tokenizer, _Grammars] = WeakKeyDictionary()
_LOCK = Lock()


def warm(tokenizer: Tokenizer) -> None:
    """Do what the first rule of a vocabulary would wait for: a second at 250,000 tokens."""
    _grammars(tokenizer)


def _grammars(tokenizer: Tokenizer) -> _Grammars:
    with _LOCK:
        if tokenizer not in _BY_TOKENIZER:
            _BY_TOKENIZER[tokenizer] = _Grammars(tokenizer)
        return _BY_TOKENIZER[tokenizer]


def grammar_rule(
    constraint: Constraint, tokenizer: Tokenizer, vocabulary: int, stop_ids: Collection[int]
) -> GrammarRule:
    """The rule of one answer. The first one of a vocabulary takes a second, then milliseconds, later copies less.

    Raises RequestError naming what can't be honoured; `grammar_check` finds the same without the vocabulary.
    """
    return GrammarRule(constraint, _grammars(tokenizer).matcher(constraint), tokenizer.vocab_size, vocabulary, stop_ids)
