"""Updates of the core to a completion, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from ...core import TokenChoice
from ...text.pieces import ContentText
from ..answer import Service
from ..ask import Ask, Delta, Done, Progress, Update, Usage
from ..stream import sse
from .completion_request import CompletionRequest
from .figures import completion_logprobs, progress_body, timings, usage_body
from .responses import Completion

DONE = b"data: [DONE]\n\n"


class CompletionAnswer:
    """One request's answer; the choices of all its prompts, in their order."""

    def __init__(self, service: Service, body: CompletionRequest, asks: Sequence[Ask]) -> None:
        self._service, self._body, self._asks = service, body, asks
        self._count = asks[0].count
        self._head = {
            "id": f"cmpl-{token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": service.fingerprint,
        }
        self._offsets = [len(self._echo(choice)) for choice in range(self._count * len(asks))]
        self._usages: dict[int, Usage] = {}
        self._began = time.monotonic()

    def _echo(self, choice: int) -> str:
        prompt = self._asks[choice // self._count].prompt
        return self._service.tokenizer.decode(prompt, special=True) if self._body.echo else ""

    async def whole(self) -> Completion:
        """The answer at once."""
        texts = [self._echo(choice) for choice in range(len(self._offsets))]
        tokens: list[list[TokenChoice]] = [[] for _ in texts]
        reasons: dict[int, str] = {}
        async with aclosing(self._service.answer(*self._asks)) as updates:
            async for update in updates:
                if isinstance(update, Delta):
                    texts[update.choice] += _text(update)
                    tokens[update.choice] += [said.token for said in update.tokens]
                elif isinstance(update, Done):
                    self._usages[update.choice] = update.usage
                    reasons[update.choice] = _reason(update)
        choices = [
            {
                "index": choice,
                "text": text,
                "logprobs": self._logprobs(choice, tokens[choice], text),
                "finish_reason": reasons[choice],
            }
            for choice, text in enumerate(texts)
        ]
        return Completion.model_validate(
            {**self._head, "choices": choices, "usage": self._usage(), "timings": timings(self._usages[0])}
        )

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        usage: dict[str, Any] = {"usage": None} if self._wants_usage else {}
        if self._body.echo:
            for choice in range(len(self._offsets)):
                yield sse({**self._head, "choices": [_choice(choice, self._echo(choice), None, None)], **usage})
        async with aclosing(self._service.answer(*self._asks)) as updates:
            async for update in updates:
                extra, choices = usage, self._choices(update)
                if isinstance(update, Progress):
                    if not self._body.return_progress:
                        continue
                    extra = {**usage, "prompt_progress": progress_body(update, self._began)}
                yield sse({**self._head, "choices": choices, **extra})
        last = {"timings": timings(self._usages[0])}
        if self._wants_usage:
            yield sse({**self._head, "choices": [], "usage": self._usage(), **last})
        yield DONE

    def _choices(self, update: Update) -> list[dict[str, Any]]:
        match update:
            case Delta():
                text = _text(update)
                logprobs = self._logprobs(update.choice, [said.token for said in update.tokens], text)
                return [_choice(update.choice, text, logprobs, None)]
            case Done():
                self._usages[update.choice] = update.usage
                return [_choice(update.choice, "", None, _reason(update))]
        return []

    @property
    def _wants_usage(self) -> bool:
        return bool(self._body.stream_options and self._body.stream_options.include_usage)

    def _usage(self) -> dict[str, Any]:
        return usage_body(self._usages, self._count)

    def _logprobs(self, choice: int, tokens: list[TokenChoice], text: str) -> dict[str, Any] | None:
        if self._body.logprobs is None or not tokens:
            return None
        offset = self._offsets[choice]
        self._offsets[choice] += len(text)
        return completion_logprobs(self._service.tokenizer, tokens, offset)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _text(delta: Delta) -> str:
    return "".join(piece.text for piece in delta.pieces if isinstance(piece, ContentText))


def _reason(done: Done) -> str:
    return "length" if done.reason == "length" else "stop"
