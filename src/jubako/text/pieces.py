"""What an answer is made of, as it comes: thinking, content, tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThinkingText:
    text: str


@dataclass(frozen=True)
class ContentText:
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; `index` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """Further text of a call's arguments; all of it together is one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The call is complete."""

    index: int


Piece = ThinkingText | ContentText | ToolCallStart | ToolCallArguments | ToolCallEnd
