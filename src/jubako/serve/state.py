"""Routes about the server itself: health, status, metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from .. import __version__
from .answer import Service
from .metrics import CONTENT_TYPE
from .openai.responses import ERRORS, ErrorBody
from .problems import Problem, openai_shape

router = APIRouter(tags=["server"])
_BEGAN = time.monotonic()
_GUARDED: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 403, 421)}


class Health(BaseModel):
    status: str


class ModelState(BaseModel):
    id: str
    context: int | None


class Requests(BaseModel):
    running: int
    waiting: int
    served: int
    failed: int
    cancelled: int


class ServerStatus(BaseModel):
    """What the server knows; the engine adds figures of its own, such as speed and memory, while it is ready."""

    model_config = ConfigDict(extra="allow")

    version: str
    uptime_seconds: float
    state: str
    stage: str
    restarts: int
    model: ModelState
    requests: Requests


@router.get(
    "/health", response_model=Health, responses={503: {"model": ErrorBody, "description": "It can't answer yet"}}
)
async def health(http: HttpRequest) -> Any:
    """200 exactly when a request would be answered."""
    service: Service = http.app.state.service
    if service.engine.healthy:
        return {"status": "ok"}
    problem = Problem("unavailable", service.engine.explain(), code=service.engine.state, retry_after=1)
    return JSONResponse({"status": service.engine.state, **openai_shape(problem)}, problem.status, problem.headers)


@router.get("/v1/status", response_model=ServerStatus, responses=_GUARDED)
async def status(http: HttpRequest) -> Any:
    """What is going on, for people and monitors."""
    service: Service = http.app.state.service
    engine, line = service.engine, service.line
    ready = engine.ready
    counts = service.counts
    return {
        **await engine.status(),
        "version": __version__,
        "uptime_seconds": round(time.monotonic() - _BEGAN, 1),
        "state": engine.state,
        "stage": engine.stage,
        "restarts": engine.restarts,
        "model": {"id": service.name, "context": ready.context if ready else None},
        "requests": {"running": line.taken, "waiting": line.waiting, **counts},
    }


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **_GUARDED})
async def metrics(http: HttpRequest) -> Response:
    """Figures for Prometheus."""
    service: Service = http.app.state.service
    engine, line = service.engine, service.line
    gauges = {
        "running": line.taken,
        "waiting": line.waiting,
        "engine_up": int(engine.healthy),
        "engine_restarts": engine.restarts,
    }
    return Response(service.metrics.text(gauges, await engine.status()), media_type=CONTENT_TYPE)
