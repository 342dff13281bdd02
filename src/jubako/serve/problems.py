"""What goes wrong with a request, told once for all dialects and shaped for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import JubakoError, RequestError, TemplateError


class ContextExceeded(RequestError):
    """The prompt leaves no room for an answer; `tokens` of it, `limit` in the context."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens, the context is {limit}, and an answer needs at least one")
        self.tokens, self.limit = tokens, limit


class EngineDown(JubakoError):
    """The engine is loading, or has stopped and is being started again."""


class EngineFailed(JubakoError):
    """The engine could not complete an answer."""


class QueueFull(JubakoError):
    """More requests wait than may."""


class Refused(JubakoError):
    """What is found wrong before any dialect looks at the body; `kind` as in `Problem`."""

    def __init__(self, kind: str, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.param, self.code = kind, param, code


STATUS = {
    "invalid": 400,
    "authentication": 401,
    "permission": 403,
    "not_found": 404,
    "method": 405,
    "timeout": 408,
    "too_large": 413,
    "media_type": 415,
    "misdirected": 421,
    "busy": 429,
    "headers": 431,
    "internal": 500,
    "unavailable": 503,
}


@dataclass(frozen=True)
class Problem:
    """kind: a key of STATUS. param: the field at fault. context: (tokens, limit) where the prompt is too long."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    context: tuple[int, int] | None = None

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def problem_of(error: BaseException) -> Problem:
    """What a client may know of an error. Errors that are bugs give their kind away, nothing else."""
    match error:
        case ContextExceeded():
            return Problem(
                "invalid", str(error), "messages", "context_length_exceeded", context=(error.tokens, error.limit)
            )
        case Refused():
            return Problem(error.kind, str(error), error.param, error.code)
        case RequestError() | TemplateError():
            return Problem("invalid", str(error), getattr(error, "param", None))
        case QueueFull():
            return Problem("busy", str(error), code="rate_limit_exceeded", retry_after=2)
        case EngineDown():
            return Problem("unavailable", str(error), code="service_unavailable", retry_after=1)
        case EngineFailed():
            return Problem("internal", str(error), code="engine_error")
        case _:
            return Problem(
                "internal", "something went wrong inside the server; its log says more", code="internal_error"
            )


_OPENAI_TYPES = {"busy": "rate_limit_error", "internal": "server_error", "unavailable": "server_error"}


def openai_shape(problem: Problem) -> dict[str, Any]:
    """The body of an error as OpenAI's services send it."""
    message = problem.message
    if problem.context:
        tokens, limit = problem.context
        message = (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
    kind = _OPENAI_TYPES.get(problem.kind, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": problem.param, "code": problem.code}}


_ANTHROPIC_TYPES = {
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "timeout": "timeout_error",
    "busy": "rate_limit_error",
    "internal": "api_error",
    "unavailable": "overloaded_error",
}


def anthropic_shape(problem: Problem) -> dict[str, Any]:
    """The body of an error as Anthropic's services send it."""
    message = problem.message
    if problem.context:
        message = "prompt is too long: {} tokens > {} maximum".format(*problem.context)
    elif problem.param and not message.startswith(problem.param):
        message = f"{problem.param}: {message}"
    kind = _ANTHROPIC_TYPES.get(problem.kind, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def shape_for(path: str) -> Callable[[Problem], dict[str, Any]]:
    """How the dialect that a path belongs to tells of a problem."""
    return anthropic_shape if path == "/v1/messages" or path.startswith("/v1/messages/") else openai_shape
