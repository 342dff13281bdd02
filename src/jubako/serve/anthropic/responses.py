"""What the Anthropic dialect answers with, for the OpenAPI page."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class TextContent(BaseModel):
    type: Literal["text"] = "text"
    text: str


class ThinkingContent(BaseModel):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseContent(BaseModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class OutputDetails(BaseModel):
    thinking_tokens: int


class Usage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class MessageBody(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: Usage


class Counted(BaseModel):
    input_tokens: int


class ErrorDetail(BaseModel):
    type: str
    message: str


class ErrorBody(BaseModel):
    type: Literal["error"] = "error"
    error: ErrorDetail


_SAID = {
    400: "The request can't be honoured, and why",
    401: "No key, or a wrong one",
    403: "A page of another site asked",
    408: "The body did not arrive in time",
    413: "The body is too large",
    421: "A host name this server does not answer to",
    429: "Too many requests are waiting",
    500: "The engine failed; the request may be sent again",
    503: "The model is being loaded",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _SAID.items()
}
EVENTS = (
    "With stream: events message_start, content_block_start, content_block_delta, content_block_stop, message_delta, "
    "message_stop, and ping while it takes long."
)
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": f"The answer. {EVENTS}",
        "content": {"text/event-stream": {"schema": {"type": "object"}}},  # of each event: its name and data
    }
}
