"""What the OpenAI dialect answers with. Chunks of a stream are written as plain dicts of the same shape."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[ContentLogprob] | None
    refusal: None = None


class Function(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class PromptDetails(BaseModel):
    cached_tokens: int


class CompletionDetails(BaseModel):
    reasoning_tokens: int


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(BaseModel):
    """As llama.cpp gives them: tokens, milliseconds, tokens per second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    system_fingerprint: str
    service_tier: None = None
    timings: Timings


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    system_fingerprint: str
    timings: Timings


class ModelCard(BaseModel):
    """With the fields that OpenAI's clients read and those that Anthropic's do."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = Field(description="The same as context_length.")
    context_length: int | None = Field(description="Tokens; null while the model is being loaded.")
    description: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
    has_more: Literal[False] = False
    first_id: str
    last_id: str


class Piece(BaseModel):
    id: int
    piece: str | list[int] = Field(description="Text, or bytes where they are no whole characters.")


class Tokenized(BaseModel):
    tokens: list[int] | list[Piece]
    count: int
    max_model_len: int | None


class Detokenized(BaseModel):
    content: str
    prompt: str


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request can't be honoured, and why"},
    401: {"model": ErrorBody, "description": "No key, or a wrong one"},
    403: {"model": ErrorBody, "description": "A page of another site asked"},
    408: {"model": ErrorBody, "description": "The body did not arrive in time"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    421: {"model": ErrorBody, "description": "A host name this server does not answer to"},
    429: {"model": ErrorBody, "description": "Too many requests are waiting"},
    500: {"model": ErrorBody, "description": "The engine failed; the request may be sent again"},
    503: {"model": ErrorBody, "description": "The model is being loaded"},
}


def streamed(chunk: str) -> dict[int | str, dict[str, Any]]:
    """The documentation of an answer that is streamed on request: an event for each chunk."""
    text = f"With stream: the JSON of a {chunk}; in the last event [DONE]."
    event = {"type": "object", "properties": {"data": {"type": "string", "description": text}}}
    return {200: {"description": "The answer", "content": {"text/event-stream": {"schema": event}}}}
