"""What a dialect asks for, and what it hears of the answers: plain data between `answer.py` and the dialects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request as HttpRequest

from ..core import Constraint, GenerationStats, SamplingParams, ThinkingBudget, TokenChoice
from ..text.pieces import Piece


class Parser(Protocol):
    """Token ids to pieces; `text.answer.AnswerParser`, or `plain.PlainText` where nothing is to be told apart."""

    @property
    def stopped(self) -> str | None:
        """What ended the answer here: a stop sequence, or "" for a call after which nothing is wanted."""

    @property
    def in_content(self) -> bool:
        """Whether the next token is content."""

    @property
    def calls(self) -> int:
        """Complete tool calls so far."""

    @property
    def thinking_tokens(self) -> int:
        """Tokens of thinking so far."""

    def push(self, token_id: int) -> list[Piece]:
        """What became complete with this token."""

    def finish(self, reason: str) -> list[Piece]:
        """What was held back."""


@dataclass(frozen=True)
class Asker:
    """client: who asks; the line is fair between clients. request_id: of the HTTP request, for the log."""

    client: str = ""
    request_id: str = ""


NOBODY = Asker()


def asker_of(http: HttpRequest) -> Asker:
    """Who sent a request."""
    return Asker(http.scope.get("jubako.client", ""), http.scope.get("jubako.id", ""))


@dataclass(frozen=True)
class Ask:
    """What is wanted: `count` answers to one prompt. Fields not explained here are those of `core.Request`.

    parser      makes what reads one answer
    max_tokens  None: as many as the context leaves
    """

    prompt: tuple[int, ...]
    parser: Callable[[], Parser]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    count: int = 1
    stop_ids: frozenset[int] = frozenset()
    keep: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    thinking: ThinkingBudget | None = None
    asker: Asker = NOBODY


@dataclass(frozen=True)
class Usage:
    """What one answer took, in tokens; `stats` has the times."""

    prompt: int
    cached: int
    completion: int
    reasoning: int
    stats: GenerationStats


@dataclass(frozen=True)
class Progress:
    """`read` of `total` prompt tokens are in, `cached` of them were known."""

    choice: int
    read: int
    total: int
    cached: int


@dataclass(frozen=True)
class Said:
    """One token, and whether it is content, not thinking or a call."""

    token: TokenChoice
    content: bool


@dataclass(frozen=True)
class Delta:
    """The pieces that became complete, and the tokens since the last delta."""

    choice: int
    pieces: tuple[Piece, ...]
    tokens: tuple[Said, ...]


@dataclass(frozen=True)
class Done:
    """The answer is complete. reason: "stop", "stop_sequence" (then it is named), "length" or "tool_calls"."""

    choice: int
    reason: str
    stop_sequence: str | None
    usage: Usage


Update = Progress | Delta | Done
