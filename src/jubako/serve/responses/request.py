"""The body of POST /v1/responses. Fields this server has no use for are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..openai.fields import Body, Sampling, Whole


class Part(Body):
    """A part of a message or of a tool's output. This model reads text."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Body):
    """An input item: a message, function_call, function_call_output, or reasoning."""

    type: str | None = Field(None, description="Without one the item is a message.")
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[Part], Field(max_length=10_000)] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Annotated[list[Part], Field(max_length=10_000)] | None = None
    summary: Annotated[list[Part], Field(max_length=1000)] | None = None
    encrypted_content: str | None = Field(None, description="As a reasoning item of an earlier answer had it.")


class ToolDefinition(Body):
    """Tools of other types than function would run at the service; the model is not told of them."""

    type: str
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: str


class AllowedTool(Body):
    """Tools of other types than function can't be called, allowed or not."""

    type: str
    name: str | None = None


class AllowedChoice(Body):
    """The tools that this answer may call; the model is shown the others as well."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=1024)]


class Reasoning(Body):
    """summary: the thinking is given as the summary of its item, else as its content."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(Sampling):
    model: str | None = Field(None, description="Any name; the loaded model answers.")
    input: str | Annotated[list[Item], Field(max_length=20_000)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    include: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description="reasoning.encrypted_content and message.output_text.logprobs have an effect."
    )
    stream: bool | None = None
    store: bool | None = Field(None, description="Nothing is stored, whatever is said here.")
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
