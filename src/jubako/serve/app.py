"""The application: routes, error answers, the OpenAPI page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp

from .. import __version__
from ..errors import JubakoError
from . import docs, page, state
from .answer import Service
from .anthropic import messages
from .body import Bodies, BodyLimits
from .front import Front
from .guard import Guard
from .openai import chat, completions, models, tokens
from .openai.fields import MOST_ID
from .problems import Problem, problem_of, shape_for
from .responses import responses
from .stream import ClientGone, Json

ROUTERS = (
    chat.router,
    completions.router,
    messages.router,
    responses.router,
    models.router,
    tokens.router,
    state.router,
)


def build(service: Service, guard: Guard, limits: BodyLimits) -> ASGIApp:
    """Everything that answers HTTP, around one service."""
    app = FastAPI(
        title="Jubako",
        version=__version__,
        description="An inference server that speaks the interfaces of OpenAI and Anthropic.",
        docs_url=None,  # these load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)
    page.mount(app)
    docs.mount(app)
    app.state.service = service
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.openapi = lambda: _true_openapi(app, service.tokenizer.vocab_size)  # type: ignore[method-assign]
    service.metrics.paths = frozenset(path for path in app.openapi()["paths"] if "{" not in path)
    return Front(Bodies(app, limits), guard, service.metrics)


def _true_openapi(app: FastAPI, vocabulary: int) -> dict[str, Any]:
    """FastAPI's page without the status 422 that this server never gives, token ids bounded by the vocabulary."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema.get("components", {}).get("schemas", {}).pop(name, None)
        _bound_ids(schema, vocabulary)
    return app.openapi_schema or {}


def _bound_ids(schema: Any, vocabulary: int) -> None:
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if isinstance(part, dict) and part.get("maximum") == MOST_ID:
            part["maximum"] = vocabulary - 1
        _bound_ids(part, vocabulary)


def answer_problem(http: HttpRequest, problem: Problem) -> Response:
    """The error answer in the dialect of the path."""
    return Json(shape_for(http.url.path)(problem), problem.status, problem.headers)


async def _explained(http: HttpRequest, error: Exception) -> Response:
    return answer_problem(http, problem_of(error))


async def _invalid(http: HttpRequest, error: Exception) -> Response:
    """What is wrong with a body: of all that pydantic finds, the complaint that goes deepest, its field as a path.

    Among equals one that found the type that it tried.
    """
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if found[0]["type"] == "json_invalid":
        return answer_problem(http, Problem("invalid", f"the body is not JSON: {found[0]['ctx']['error']}"))
    fields = [_field(one["loc"][1:], error.body, one["type"] == "missing") for one in found]
    depths = [(len(field.split(".")) if field else 0) for field in fields]
    place = max(range(len(found)), key=lambda place: (depths[place], not found[place]["type"].endswith("_type")))
    field, said = fields[place], found[place]["msg"]
    return answer_problem(http, Problem("invalid", f"{field or 'the body'}: {said}", field or None))


def _field(where: Sequence[int | str], body: Any, missing: bool) -> str:
    """The path of a field: what pydantic says without the names of types that it tried."""
    path: list[str] = []
    for place, part in enumerate(where):
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int)):
            body = body[part]  # type: ignore[index]
            path.append(str(part))
        elif missing and place == len(where) - 1:
            path.append(str(part))
    return ".".join(path)


async def _http(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = http.url.path
    kinds = {404: "not_found", 405: "method"}
    texts = {404: f"there is nothing at {path[:200]}", 405: f"{http.method} is not what {path[:200]} takes"}
    problem = Problem(kinds.get(error.status_code, "invalid"), texts.get(error.status_code, str(error.detail)))
    response = answer_problem(http, problem)
    response.headers.update(error.headers or {})
    return response


async def _gone(http: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)


_HANDLERS: dict[type[Exception], Any] = {
    JubakoError: _explained,
    RequestValidationError: _invalid,
    HTTPException: _http,
    ClientGone: _gone,
    Exception: _explained,
}
