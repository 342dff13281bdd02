"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ...core import Constraint
from ...text.grammar_check import check_constraint
from ..answer import Service
from ..ask import Ask, Asker, asker_of
from ..plain import PlainText
from ..problems import Refused, openai_shape
from ..stream import EventStream, sse, unless_gone
from .completion_answer import CompletionAnswer
from .completion_request import CompletionRequest
from .formats import constraint_of
from .responses import ERRORS, Completion, streamed
from .sampling import logit_bias, sampling_params, stops

router = APIRouter(tags=["openai"])


@router.post("/v1/completions", response_model=Completion, responses={**ERRORS, **streamed("completion chunk")})
async def completions(body: CompletionRequest, http: HttpRequest) -> Any:
    """Continue text as it stands."""
    service: Service = http.app.state.service
    asks = await asyncio.to_thread(_asks, service, body, asker_of(http))
    answer = CompletionAnswer(service, body, asks)
    if body.stream:
        return EventStream(answer.chunks(), lambda problem: sse(openai_shape(problem)))
    return await unless_gone(http, answer.whole())


def _asks(service: Service, body: CompletionRequest, asker: Asker) -> list[Ask]:
    """One ask for each prompt. Raises Refused for what this server does not do."""
    service.check_ready()
    if body.suffix:
        raise Refused("invalid", "suffix: this model has no way to fill in text", "suffix")
    if body.best_of not in (None, body.n or 1):
        raise Refused("invalid", f"best_of is {body.best_of}; it can only be n, {body.n or 1}", "best_of")
    if body.echo and body.logprobs is not None:
        raise Refused("invalid", "logprobs can't be given together with echo", "logprobs")
    base = Ask(
        prompt=(),
        parser=partial(PlainText, service.tokenizer, stops(body.stop)),
        params=sampling_params(body, service.defaults),
        max_tokens=body.max_tokens or 16,
        count=body.n or 1,
        stop_ids=frozenset(service.tokenizer.eos_ids),
        logit_bias=logit_bias(body, service),
        top_logprobs=body.logprobs,
        constraint=_checked(body),
        asker=asker,
    )
    return [replace(base, prompt=_ids(service, body, prompt)) for prompt in _prompts(body)]


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    several: list[str | list[int]] = [part for part in prompt if not isinstance(part, int)]
    return several or [[part for part in prompt if isinstance(part, int)]]


def _ids(service: Service, body: CompletionRequest, prompt: str | list[int]) -> tuple[int, ...]:
    """The prompt's ids; an empty text begins where a document does. Raises Refused for ids that are none."""
    assert service.engine.ready
    if isinstance(prompt, str):
        ids = service.tokenizer.encode(prompt, special=bool(body.parse_special))
        start = service.tokenizer.bos_id if service.tokenizer.bos_id is not None else service.tokenizer.eos_id
        return tuple(ids) or (() if start is None else (start,))
    wrong = next((id for id in prompt if not 0 <= id < service.engine.ready.vocabulary), None)
    if wrong is not None:
        raise Refused("invalid", f"prompt: {wrong} is no token id of this model", "prompt")
    return tuple(prompt)


def _checked(body: CompletionRequest) -> Constraint | None:
    constraint = constraint_of(body.response_format)
    if constraint is not None:
        check_constraint(constraint)
    return constraint
