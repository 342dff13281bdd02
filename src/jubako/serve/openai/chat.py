"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ..answer import Service
from ..ask import Ask, Asker, asker_of
from ..problems import openai_shape
from ..stream import EventStream, Json, sse, unless_gone
from .chat_answer import whole
from .chat_chunks import ChatChunks
from .chat_request import ChatRequest
from .convert import conversation_of
from .responses import ERRORS, ChatCompletion, streamed
from .sampling import logit_bias, sampling_params, stops

router = APIRouter(tags=["openai"])


@router.post(
    "/v1/chat/completions", response_model=ChatCompletion, responses={**ERRORS, **streamed("chat completion chunk")}
)
async def chat_completions(body: ChatRequest, http: HttpRequest) -> Any:
    """Answer a conversation."""
    service: Service = http.app.state.service
    ask = await asyncio.to_thread(_ask, service, body, asker_of(http))
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        chunks = ChatChunks(service, ask, with_usage, bool(body.return_progress))
        return EventStream(chunks.events(), lambda problem: sse(openai_shape(problem)))
    return Json(await unless_gone(http, whole(service, ask)))


def _ask(service: Service, body: ChatRequest, asker: Asker) -> Ask:
    """What the core is asked. Raises RequestError for what can't be done."""
    service.check_ready()
    prepared = service.preparer.prepare(conversation_of(body))
    return Ask(
        prompt=prepared.prompt,
        parser=partial(prepared.parser, service.tokenizer, stops(body.stop)),
        params=sampling_params(body, service.defaults),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        count=body.n or 1,
        stop_ids=prepared.stop_ids,
        keep=prepared.keep,
        logit_bias=(*prepared.logit_bias, *logit_bias(body, service)),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        constraint=prepared.constraint,
        thinking=prepared.thinking,
        asker=asker,
    )
