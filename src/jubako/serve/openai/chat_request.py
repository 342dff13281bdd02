"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from .fields import Body, Sampling, StreamOptions, Whole

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

_PARTS: JsonValue = [
    {
        "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": {"type": "string"}},
        "required": ["text"],
    },
    {"properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}}, "required": ["refusal"]},
]


class Part(Body):
    """A part of a message. This model reads text only."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _PARTS})

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Body):
    name: str
    arguments: str | dict[str, Any] = Field("", description="JSON text, as the answer gave it.")


class CallMessage(Body):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction


class Message(Body):
    role: Role
    content: str | Annotated[list[Part], Field(max_length=10_000)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallMessage], Field(max_length=1000)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="The thinking of an earlier answer.")
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    refusal: str | None = None
    prefix: bool | None = Field(None, description="On the last message, an assistant's: continue it.")


class FunctionDefinition(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = None


class ToolDefinition(Body):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(Body):
    """The tools that this answer may call; the model is shown the others as well."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=1024)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """regex and grammar (Lark, as llguidance reads it) are this server's additions."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchema | None = None
    regex: Annotated[str, Field(max_length=100_000)] | None = None
    grammar: Annotated[str, Field(max_length=1_000_000)] | None = None


class Thinking(Body):
    """As Anthropic's interface and others have it."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Annotated[int, Field(ge=0), Whole] | None = None


class Reasoning(Body):
    """As OpenRouter and the Responses interface have it."""

    effort: str | None = None
    max_tokens: Annotated[int, Field(ge=0), Whole] | None = None
    enabled: bool | None = None


class ChatRequest(Sampling):
    """What is answered; fields without a line here are those of OpenAI's interface."""

    model: str | None = Field(None, description="Any name; the loaded model answers.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=20_000)]
    max_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    n: Annotated[int, Field(ge=1, le=32), Whole] | None = None
    stop: str | Annotated[list[str], Field(max_length=64)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How long to think; none: not at all."
    )
    thinking: Thinking | None = Field(None, description="Thinking on or off, and its budget in tokens.")
    reasoning: Reasoning | None = Field(None, description="Thinking on or off, its effort and budget in tokens.")
    enable_thinking: bool | None = Field(None, description="Thinking on or off.")
    thinking_budget: Annotated[int, Field(ge=0), Whole] | None = Field(None, description="Most tokens of thinking.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the chat template.")
    continue_final_message: bool | None = Field(
        None, description="Continue the last message, an assistant's. That is the default; false: answer after it."
    )
    return_progress: bool | None = Field(None, description="While streaming, tell how much of the prompt is read.")
