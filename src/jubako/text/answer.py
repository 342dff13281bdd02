"""An answer's tokens as what a client is told of: thinking, content, calls, while they come.

Thinking and calls are marked by tokens, looked at by id: text that spells `<tool_call>` stays text. However the tokens
are dealt out, the pieces of each kind together are the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .call_parser import CallParser
from .call_schema import Tool
from .pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart
from .stop import StopMatcher
from .tokenizer import StreamDecoder, Tokenizer


@dataclass(frozen=True)
class Marks:
    """Ids of the tokens that mark thinking and calls; None where the vocabulary has no such token."""

    think: int | None
    end_think: int | None
    call: int | None
    end_call: int | None

    @staticmethod
    def of(tokenizer: Tokenizer) -> Marks:
        names = ("<think>", "</think>", "<tool_call>", "</tool_call>")
        return Marks(*(tokenizer.special_tokens.get(name) for name in names))


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class AnswerParser:
    """Takes ids, end tokens left out, and gives pieces.

    thinking_open     the prompt ends within thinking
    tools             what may be called; None or empty: `<tool_call>` is text
    stop              sequences that end the answer; looked for in content only
    ordered           parameters of a call come in the schema's order, as a mask holds them to
    single            the answer ends after the first call
    think_calls       whether `<tool_call>` within thinking ends it; else it is text there
    `stopped` is what ended the answer here: a stop sequence, or "" for the first call of `single`; None: nothing yet.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking_open: bool,
        tools: Sequence[Tool] | None = None,
        stop: Sequence[str] = (),
        ordered: bool = False,
        single: bool = False,
        think_calls: bool = True,
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.stopped: str | None = None
        self.calls = 0  # complete ones
        self.thinking_tokens = 0
        self._tokenizer = tokenizer
        self._marks = Marks.of(tokenizer)
        self._tools = {tool.name: tool for tool in tools or ()}
        self._ordered, self._single, self._think_calls = ordered, single, think_calls
        self._call_id = call_id
        self._matcher = StopMatcher(stop)
        self._decoder = StreamDecoder(tokenizer)
        self._thinking = thinking_open
        self._call: CallParser | None = None
        self._index = -1  # of the call begun last
        self._shown = False  # whether content was given out
        self._trim = False  # whether newlines at the start of what follows are dropped
        self._held = ""  # newlines that end a channel if nothing more comes

    @property
    def in_content(self) -> bool:
        """Whether the next token is content, unless it marks something."""
        return not self._thinking and self._call is None

    def push(self, token_id: int) -> list[Piece]:
        """What became certain with this token. Nothing after the answer was `stopped`."""
        if self.stopped is not None:
            return []
        self.thinking_tokens += self._thinking
        if self._call:
            if token_id == self._marks.end_call:
                return self._end_call(self._call)
            return self._call_text(self._call, self._decoder.push(token_id) if self._known(token_id) else "")
        if self._thinking and token_id == self._marks.end_think:
            pieces = self._flush()
            self._held, self._thinking, self._trim = "", False, True
            return pieces
        if self._opens_call(token_id):
            pieces = self._flush()
            self._call = CallParser(self._tools, self._ordered)
            return pieces
        if token_id in (self._marks.think, self._marks.end_think):  # misplaced unless it opens the answer
            if not self._thinking and not self._shown:
                self._thinking, self._trim = token_id == self._marks.think, True
            return []
        return self._text(self._decoder.push(token_id)) if self._known(token_id) else []

    def finish(self, reason: str) -> list[Piece]:
        """What was held back, once no token comes any more. A call that is not complete is none.

        reason: "stop" or what else ended the answer; what only looked like a call is content after "stop".
        """
        pieces: list[Piece] = []
        if self.stopped is not None:
            return pieces
        if self._call and self._call.name is None and reason == "stop":
            pieces += self._no_call(self._call)
        if self._call is None:
            pieces += self._flush()
            if not self._thinking:
                pieces += self._content(self._held) if self._held else []
                rest = self._matcher.finish() if self.stopped is None else ""
                pieces += [ContentText(rest)] if rest else []
        return pieces

    def _known(self, token_id: int) -> bool:
        return 0 <= token_id < self._tokenizer.vocab_size

    def _opens_call(self, token_id: int) -> bool:
        return bool(self._tools) and token_id == self._marks.call and (self._think_calls or not self._thinking)

    def _flush(self) -> list[Piece]:
        """What an unfinished character leaves behind."""
        rest = self._decoder.finish()
        self._decoder = StreamDecoder(self._tokenizer)
        return self._text(rest) if rest else []

    def _text(self, text: str) -> list[Piece]:
        """Text of the present channel; its last newlines are held back, they belong to the mark that may follow."""
        if self._trim:
            text = text.lstrip("\n")
            self._trim = not text
        text = self._held + text
        kept = text.rstrip("\n") if self._thinking or self._tools else text
        self._held = text[len(kept) :]
        if not kept:
            return []
        return [ThinkingText(kept)] if self._thinking else self._content(kept)

    def _content(self, text: str) -> list[Piece]:
        self._shown = True
        visible = self._matcher.push(text)
        self.stopped = self._matcher.matched
        return [ContentText(visible)] if visible else []

    def _call_text(self, call: CallParser, text: str) -> list[Piece]:
        named = call.name is not None
        arguments = call.push(text)
        if call.wrong and not named:
            return self._no_call(call)
        pieces: list[Piece] = []
        if call.name and not named:
            pieces += self._begin_call(call.name)
        if arguments:
            pieces.append(ToolCallArguments(self._index, arguments))
        return pieces

    def _begin_call(self, name: str) -> list[Piece]:
        """A call begins in earnest: newlines before it are no content, what may have become a stop sequence is."""
        self._held, self._thinking = "", False
        self._index += 1
        rest = self._matcher.finish()
        content: list[Piece] = [ContentText(rest)] if rest else []
        return [*content, ToolCallStart(self._index, self._call_id(), name)]

    def _end_call(self, call: CallParser) -> list[Piece]:
        rest = self._decoder.finish()
        self._decoder = StreamDecoder(self._tokenizer)
        pieces = self._call_text(call, rest) if rest else []
        if self._call is None:
            return pieces + self._text("</tool_call>")
        arguments = call.close()
        if arguments is None:
            return pieces + self._call_text(call, "</tool_call>")
        self._call, self._trim = None, True
        self.calls += 1
        self.stopped = "" if self._single else None
        return [*pieces, ToolCallArguments(self._index, arguments), ToolCallEnd(self._index)]

    def _no_call(self, call: CallParser) -> list[Piece]:
        """What was read as a call is text after all."""
        self._call = None
        return self._text(f"<tool_call>{call.text}")
