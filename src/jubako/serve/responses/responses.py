"""POST /v1/responses."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ..answer import Service
from ..ask import Ask, Asker, asker_of
from ..openai.responses import ERRORS
from ..openai.sampling import logit_bias, sampling_params
from ..stream import EventStream, Json, unless_gone
from .answer import ResponseAnswer
from .convert import conversation_of
from .request import ResponsesRequest
from .schema import STREAMED, ResponseBody

router = APIRouter(tags=["openai"])


@router.post("/v1/responses", response_model=ResponseBody, responses={**ERRORS, **STREAMED})
async def responses(body: ResponsesRequest, http: HttpRequest) -> Any:
    """Answer a conversation given as items. Stateless: nothing is stored."""
    service: Service = http.app.state.service
    ask = await asyncio.to_thread(_ask, service, body, asker_of(http))
    answer = ResponseAnswer(service, body, ask)
    if body.stream:
        return EventStream(answer.events(), answer.failed)
    return Json(await unless_gone(http, answer.whole()))


def _ask(service: Service, body: ResponsesRequest, asker: Asker) -> Ask:
    """What the core is asked. Raises RequestError for what can't be done."""
    service.check_ready()
    prepared = service.preparer.prepare(conversation_of(body))
    wanted = "message.output_text.logprobs" in (body.include or ()) or bool(body.top_logprobs)
    return Ask(
        prompt=prepared.prompt,
        parser=partial(prepared.parser, service.tokenizer),
        params=sampling_params(body, service.defaults),
        max_tokens=body.max_output_tokens,
        stop_ids=prepared.stop_ids,
        keep=prepared.keep,
        logit_bias=(*prepared.logit_bias, *logit_bias(body, service)),
        top_logprobs=(body.top_logprobs or 0) if wanted else None,
        constraint=prepared.constraint,
        thinking=prepared.thinking,
        asker=asker,
    )
