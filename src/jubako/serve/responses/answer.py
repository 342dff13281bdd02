"""Updates of the core to a response, whole or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from ..answer import Service
from ..ask import Ask, Delta, Done, Usage
from ..openai.figures import chat_logprobs
from ..problems import Problem
from ..stream import sse
from .items import Event, ItemWriter
from .request import ResponsesRequest


class ResponseAnswer:
    """The answer to one request."""

    def __init__(self, service: Service, body: ResponsesRequest, ask: Ask) -> None:
        self._service, self._ask = service, ask
        include = body.include or []
        reasoning = body.reasoning
        summary = bool(reasoning and (reasoning.summary or reasoning.generate_summary))
        self._writer = ItemWriter(summary, "reasoning.encrypted_content" in include)
        self._response = _unanswered(service, body, ask)
        self._sequence = 0

    async def whole(self) -> dict[str, Any]:
        """The response."""
        async with aclosing(self._service.answer(self._ask)) as updates:
            async for update in updates:
                match update:
                    case Delta():
                        list(self._written(update))
                    case Done(_, reason, _, usage):
                        list(self._finished(reason, usage))
        return self._response

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The server-sent events."""
        started = False
        async with aclosing(self._service.answer(self._ask)) as updates:
            async for update in updates:
                if not started:
                    started = True
                    for kind in ("response.created", "response.in_progress"):
                        yield self._sse({"type": kind, "response": self._response})
                match update:
                    case Delta():
                        for event in self._written(update):
                            yield self._sse(event)
                    case Done(_, reason, _, usage):
                        for event in self._finished(reason, usage):
                            yield self._sse(event)

    def failed(self, problem: Problem) -> bytes:
        """The last event where an error ends the stream."""
        codes = {"busy": "rate_limit_exceeded", "invalid": "invalid_prompt"}
        error = {"code": codes.get(problem.kind, "server_error"), "message": problem.message}
        self._response |= {"status": "failed", "error": error, "output": self._writer.output}
        return self._sse({"type": "response.failed", "response": self._response})

    def _written(self, delta: Delta) -> list[Event]:
        said = [said.token for said in delta.tokens if said.content]
        wanted = self._ask.top_logprobs is not None
        return list(self._writer.write(delta.pieces, chat_logprobs(self._service.tokenizer, said) if wanted else None))

    def _finished(self, reason: str, usage: Usage) -> list[Event]:
        complete = reason != "length"
        events = list(self._writer.close(complete))
        self._response |= {
            "status": "completed" if complete else "incomplete",
            "completed_at": int(time.time()),
            "incomplete_details": None if complete else {"reason": "max_output_tokens"},
            "output": self._writer.output,
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.completion,
            },
        }
        kind = "response.completed" if complete else "response.incomplete"
        return [*events, {"type": kind, "response": self._response}]

    def _sse(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return sse(numbered, event["type"])


def _unanswered(service: Service, body: ResponsesRequest, ask: Ask) -> dict[str, Any]:
    """The response before anything of it is there; it repeats what was asked."""
    text = body.text.model_dump(exclude_none=True, by_alias=True) if body.text else {}
    choice = body.tool_choice
    return {
        "id": f"resp_{token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": service.name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": body.reasoning.model_dump() if body.reasoning else {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": ask.params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump() if choice else "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": ask.params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
