"""The bodies of POST /v1/messages and /v1/messages/count_tokens. Fields this server has no use for are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..openai.fields import Body, Number, Whole


class TextBlock(Body):
    type: Literal["text"] = "text"
    text: str


class Source(Body):
    """Of a document: plain text. Other sources can't be read."""

    type: str
    data: str | None = None
    content: str | Annotated[list[TextBlock], Field(max_length=10_000)] | None = None


class Inner(Body):
    """A block inside a result: text, search_result, or a document that is plain text."""

    type: str
    text: str | None = None
    title: str | None = None
    source: Source | str | None = None
    content: str | Annotated[list[TextBlock], Field(max_length=10_000)] | None = None


class Block(Body):
    """A content block: text, thinking, redacted_thinking, tool_use, tool_result, search_result, or a text document."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[Inner], Field(max_length=10_000)] | None = None
    is_error: bool | None = None
    source: Source | str | None = None
    title: str | None = None


class Message(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=10_000)]


class ToolDefinition(Body):
    """A tool of the client's. Tools that would run at the service are refused."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Body):
    """Without it the model does not think. display omitted: its thinking is not shown."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """What belongs to the prompt."""

    model: str | None = Field(None, description="Any name; the loaded model answers.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=100_000)]
    system: str | Annotated[list[TextBlock], Field(max_length=1000)] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="An older name of output_config.format.")


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1), Whole]
    stop_sequences: Annotated[list[str], Field(max_length=64)] | None = None
    stream: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), Whole] | None = None
