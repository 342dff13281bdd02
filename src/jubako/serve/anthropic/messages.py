"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ..answer import Service
from ..ask import Ask, Asker, asker_of
from ..problems import Problem, anthropic_shape
from ..stream import EventStream, Json, sse, unless_gone
from .answer import PING, MessageAnswer
from .blocks import new_call_id
from .convert import conversation_of
from .request import CountRequest, MessagesRequest
from .responses import ERRORS, STREAMED, Counted, MessageBody

router = APIRouter(tags=["anthropic"])
_COUNT_ERRORS: dict[int | str, dict[str, Any]] = {s: e for s, e in ERRORS.items() if s not in (429, 500)}


@router.post("/v1/messages", response_model=MessageBody, responses={**ERRORS, **STREAMED})
async def messages(body: MessagesRequest, http: HttpRequest) -> Any:
    """Answer a conversation."""
    service: Service = http.app.state.service
    ask = await asyncio.to_thread(_ask, service, body, asker_of(http))
    answer = MessageAnswer(service, ask, not (body.thinking and body.thinking.display == "omitted"))
    if body.stream:
        return EventStream(answer.events(), _failed, heartbeat=PING)
    return Json(await unless_gone(http, answer.whole()))


@router.post("/v1/messages/count_tokens", responses=_COUNT_ERRORS)
async def count_tokens(body: CountRequest, http: HttpRequest) -> Counted:
    """How many tokens the prompt of such a request has."""
    service: Service = http.app.state.service
    service.check_ready()
    prepared = await asyncio.to_thread(service.preparer.prepare, conversation_of(body))
    return Counted(input_tokens=len(prepared.prompt))


def _ask(service: Service, body: MessagesRequest, asker: Asker) -> Ask:
    """What the core is asked. Raises RequestError for what can't be done."""
    service.check_ready()
    prepared = service.preparer.prepare(conversation_of(body))
    said = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k") if getattr(body, name) is not None}
    if said.get("top_k") == -1:
        said["top_k"] = 0
    stops = tuple(text for text in body.stop_sequences or () if text)
    return Ask(
        prompt=prepared.prompt,
        parser=partial(prepared.parser, service.tokenizer, stops, new_call_id),
        params=replace(service.defaults, **said),
        max_tokens=body.max_tokens,
        stop_ids=prepared.stop_ids,
        keep=prepared.keep,
        logit_bias=prepared.logit_bias,
        constraint=prepared.constraint,
        thinking=prepared.thinking,
        asker=asker,
    )


def _failed(problem: Problem) -> bytes:
    return sse(anthropic_shape(problem), "error")
