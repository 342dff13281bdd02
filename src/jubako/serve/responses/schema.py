"""What the Responses dialect answers with, for the OpenAPI page."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class InputDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class OutputItem(BaseModel):
    """A message, function_call or reasoning item, with the fields of its type."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["completed", "incomplete"]


class ResponseBody(BaseModel):
    """The fields that carry the answer; others repeat the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    usage: Usage


EVENTS = (
    "With stream: events response.created, response.in_progress, response.output_item.added and further ones of each "
    "item, response.completed, response.incomplete or response.failed; sequence_number counts them."
)
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": f"The answer. {EVENTS}",
        "content": {"text/event-stream": {"schema": {"type": "object"}}},  # of each event: its name and data
    }
}
