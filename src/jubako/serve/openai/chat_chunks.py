"""Updates of the core to the chunks of a streamed chat completion."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import Any

from ...core import TokenChoice
from ...text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallStart
from ..answer import Service
from ..ask import Ask, Delta, Done, Progress, Usage
from ..stream import sse
from .chat_answer import REASONS, head
from .figures import chat_logprobs, progress_body, timings, usage_body

END = b"data: [DONE]\n\n"


class ChatChunks:
    """One stream. Of each choice the role comes first, then its text, then its finish reason; the usage comes last."""

    def __init__(self, service: Service, ask: Ask, with_usage: bool, with_progress: bool) -> None:
        self._service, self._ask = service, ask
        self._with_usage, self._with_progress = with_usage, with_progress
        self._head = {**head(service, "chat.completion.chunk"), **({"usage": None} if with_usage else {})}
        self._begun: set[int] = set()
        self._unwritten: dict[int, list[TokenChoice]] = {}
        self._usages: dict[int, Usage] = {}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The server-sent events."""
        began = time.monotonic()
        async with aclosing(self._service.answer(self._ask)) as updates:
            async for update in updates:
                if update.choice not in self._begun:
                    self._begun.add(update.choice)
                    yield self._chunk(update.choice, {"role": "assistant", "content": ""})
                match update:
                    case Progress(choice):
                        if self._with_progress:
                            yield self._chunk(choice, {}, prompt_progress=progress_body(update, began))
                    case Delta():
                        for chunk in self._delta(update):
                            yield chunk
                    case Done(choice, reason, _, usage):
                        self._usages[choice] = usage
                        logprobs = self._logprobs(choice)
                        yield self._chunk(choice, {}, REASONS[reason], logprobs, timings=timings(usage))
        if self._with_usage:
            last = {"usage": usage_body(self._usages, self._ask.count), "timings": timings(self._usages[0])}
            yield sse({**self._head, "choices": [], **last})
        yield END

    def _delta(self, delta: Delta) -> Iterator[bytes]:
        """A chunk for each run of pieces of one kind; log probabilities go with the content."""
        if self._ask.top_logprobs is not None:
            said = [said.token for said in delta.tokens if said.content]
            self._unwritten.setdefault(delta.choice, []).extend(said)
        for kind, run in groupby(delta.pieces, type):
            pieces = list(run)
            if kind is ContentText:
                yield self._chunk(delta.choice, {"content": _text(pieces)}, None, self._logprobs(delta.choice))
            elif kind is ThinkingText:
                yield self._chunk(delta.choice, {"reasoning_content": _text(pieces)})
            else:
                self._unwritten.pop(delta.choice, None)  # a call's tokens are no content
                for piece in pieces:
                    if call := _call(piece):
                        yield self._chunk(delta.choice, {"tool_calls": [call]})

    def _logprobs(self, choice: int) -> dict[str, Any] | None:
        tokens = self._unwritten.pop(choice, None)
        return {"content": chat_logprobs(self._service.tokenizer, tokens), "refusal": None} if tokens else None

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **extra: Any,
    ) -> bytes:
        part = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return sse({**self._head, "choices": [part], **extra})


def _text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, (ContentText, ThinkingText)))


def _call(piece: Piece) -> dict[str, Any] | None:
    match piece:
        case ToolCallStart(index, id, name):
            return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        case ToolCallArguments(index, text):
            return {"index": index, "function": {"arguments": text}}
    return None
