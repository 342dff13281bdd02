"""Updates of the core to a chat completion, whole."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from ...core import TokenChoice
from ...text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart
from ..answer import Service
from ..ask import Ask, Delta, Done, Usage
from .figures import chat_logprobs, timings, usage_body
from .responses import ChatCompletion

REASONS = {"stop": "stop", "stop_sequence": "stop", "length": "length", "tool_calls": "tool_calls"}


def head(service: Service, kind: str) -> dict[str, Any]:
    """The fields that every chunk of an answer repeats; `kind` is the object's type."""
    return {
        "id": f"chatcmpl-{token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": service.fingerprint,
    }


@dataclass
class _Message:
    """One choice, collected."""

    content: str = ""
    thinking: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    tokens: list[TokenChoice] = field(default_factory=list)
    reason: str = ""

    def add(self, piece: Piece) -> None:
        match piece:
            case ContentText(text):
                self.content += text
            case ThinkingText(text):
                self.thinking += text
            case ToolCallStart(index, id, name):
                self.calls[index] = {"id": id, "function": {"name": name, "arguments": ""}}
            case ToolCallArguments(index, text):
                self.calls[index]["function"]["arguments"] += text
            case ToolCallEnd(index):
                self.complete.add(index)

    def choice(self, index: int, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
        """As OpenAI shapes it. A call that was cut off is none."""
        calls = [call for number, call in sorted(self.calls.items()) if number in self.complete]
        message = {
            "content": self.content or (None if calls else ""),
            "reasoning_content": self.thinking or None,
            "tool_calls": calls or None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": None if logprobs is None else {"content": logprobs},
            "finish_reason": REASONS[self.reason],
        }


async def whole(service: Service, ask: Ask) -> dict[str, Any]:
    """The answer to a request without `stream`. Tokens of the thinking have no place in its log probabilities."""
    messages = [_Message() for _ in range(ask.count)]
    usages: dict[int, Usage] = {}
    async with aclosing(service.answer(ask)) as updates:
        async for update in updates:
            match update:
                case Delta(choice, pieces, tokens):
                    for piece in pieces:
                        messages[choice].add(piece)
                    messages[choice].tokens += [said.token for said in tokens if said.content]
                case Done(choice, reason, _, usage):
                    messages[choice].reason = reason
                    usages[choice] = usage
    wanted = ask.top_logprobs is not None
    choices = [
        message.choice(index, chat_logprobs(service.tokenizer, message.tokens) if wanted else None)
        for index, message in enumerate(messages)
    ]
    answer = {"choices": choices, "usage": usage_body(usages, ask.count), "timings": timings(usages[0])}
    completion = ChatCompletion.model_validate({**head(service, "chat.completion"), **answer})
    return without_nothing(completion.model_dump())


def without_nothing(answer: dict[str, Any]) -> dict[str, Any]:
    """Leaves out of messages what OpenAI leaves out when there is none."""
    for choice in answer["choices"]:
        message = choice["message"]
        for name in ("reasoning_content", "tool_calls"):
            if message[name] is None:
                del message[name]
    return answer
