"""Updates of the core to a message, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from ..answer import Service
from ..ask import Ask, Delta, Done, Progress, Usage
from ..stream import sse
from .blocks import BlockList, BlockWriter

PING = sse({"type": "ping"}, "ping")
_REASONS = {"stop": "end_turn", "stop_sequence": "stop_sequence", "tool_calls": "tool_use"}


class MessageAnswer:
    """The answer to one request."""

    def __init__(self, service: Service, ask: Ask, shows_thinking: bool) -> None:
        self._service, self._ask, self._shows = service, ask, shows_thinking
        self._head: dict[str, Any] = {
            "id": f"msg_{token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": service.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    async def whole(self) -> dict[str, Any]:
        """The message."""
        blocks = BlockList(self._shows)
        message = dict(self._head)
        async with aclosing(self._service.answer(self._ask)) as updates:
            async for update in updates:
                match update:
                    case Delta(_, pieces, _):
                        blocks.add(pieces)
                    case Done(_, reason, sequence, usage):
                        message["content"] = blocks.finish()
                        message["stop_reason"] = self._reason(reason, usage)
                        message["stop_sequence"] = sequence
                        message["usage"] = usage_body(usage.prompt, usage.cached, usage.completion, usage.reasoning)
        return message

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The server-sent events. The first comes when the engine has begun, which tells what it knew already."""
        writer = BlockWriter(self._shows)
        started = False
        async with aclosing(self._service.answer(self._ask)) as updates:
            async for update in updates:
                if not started:
                    started = True
                    cached = update.cached if isinstance(update, Progress) else 0
                    message = {**self._head, "usage": usage_body(len(self._ask.prompt), cached, 0, 0)}
                    yield sse({"type": "message_start", "message": message}, "message_start") + PING
                match update:
                    case Delta(_, pieces, _):
                        for event in writer.write(pieces):
                            yield sse(event, event["type"])
                    case Done(_, reason, sequence, usage):
                        for event in writer.close():
                            yield sse(event, event["type"])
                        delta = {"stop_reason": self._reason(reason, usage), "stop_sequence": sequence}
                        figures = usage_body(usage.prompt, usage.cached, usage.completion, usage.reasoning)
                        yield sse({"type": "message_delta", "delta": delta, "usage": figures}, "message_delta")
        yield sse({"type": "message_stop"}, "message_stop")

    def _reason(self, reason: str, usage: Usage) -> str:
        if reason == "length":
            most = self._ask.max_tokens
            return "max_tokens" if most is None or usage.completion >= most else "model_context_window_exceeded"
        return _REASONS[reason]


def usage_body(prompt: int, cached: int, completion: int, reasoning: int) -> dict[str, Any]:
    """input_tokens are those that had to be read; the prompt has cache_read_input_tokens more."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
        "output_tokens_details": {"thinking_tokens": reasoning},
    }
