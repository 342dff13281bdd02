"""GET /v1/models."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from ..answer import Service
from ..problems import Refused
from .responses import ERRORS, ErrorBody, ModelCard, ModelList

router = APIRouter(tags=["openai"])
_CREATED = int(time.time())
_GUARDED: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 403, 421)}


def _card(service: Service) -> ModelCard:
    context = service.engine.ready.context if service.engine.ready else None
    return ModelCard(
        id=service.name,
        created=_CREATED,
        owned_by="jubako",
        display_name=service.name,
        created_at=datetime.fromtimestamp(_CREATED, UTC),
        context_length=context,
        max_input_tokens=context,
        description="Runs on this machine.",
    )


@router.get("/v1/models", responses=_GUARDED)
async def models(http: HttpRequest) -> ModelList:
    """The one model that is loaded."""
    card = _card(http.app.state.service)
    return ModelList(data=[card], first_id=card.id, last_id=card.id)


@router.get(
    "/v1/models/{model:path}", responses={**_GUARDED, 404: {"model": ErrorBody, "description": "Another model"}}
)
async def model(http: HttpRequest, model: str) -> ModelCard:
    """The loaded model, by its name."""
    service: Service = http.app.state.service
    if model != service.name:
        raise Refused(
            "not_found", f"the model {model!r:.100} is not loaded; {service.name!r} is", "model", "model_not_found"
        )
    return _card(service)
