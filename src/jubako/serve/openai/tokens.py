"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ...text.chat import Conversation
from ...text.tokenizer import Tokenizer
from ..answer import Service
from .convert import plain_messages
from .responses import ERRORS, Detokenized, Tokenized
from .token_request import DetokenizeRequest, TokenizeRequest

router = APIRouter(tags=["tokens"])
_ERRORS: dict[int | str, dict[str, Any]] = {s: e for s, e in ERRORS.items() if s not in (429, 500, 503)}


@router.post("/tokenize", responses=_ERRORS)
async def tokenize(body: TokenizeRequest, http: HttpRequest) -> Tokenized:
    """Token ids of a text, or of a chat through the model's template."""
    service: Service = http.app.state.service
    ids = await asyncio.to_thread(_encode, service, body)
    ready = service.engine.ready
    tokens: list[Any] = [{"id": id, "piece": _piece(service.tokenizer, id)} for id in ids] if body.with_pieces else ids
    return Tokenized(tokens=tokens, count=len(ids), max_model_len=ready.context if ready else None)


@router.post("/detokenize", responses=_ERRORS)
async def detokenize(body: DetokenizeRequest, http: HttpRequest) -> Detokenized:
    """Text of token ids, special tokens spelled out."""
    service: Service = http.app.state.service
    text = await asyncio.to_thread(service.tokenizer.decode, body.tokens, True)
    return Detokenized(content=text, prompt=text)


def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return list(service.preparer.prepare(Conversation(plain_messages(body.messages))).prompt)
    return service.tokenizer.encode(body.prompt or body.content or "", special=bool(body.parse_special))


def _piece(tokenizer: Tokenizer, id: int) -> str | list[int]:
    raw = tokenizer.token_bytes(id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
