"""A chat request to the neutral conversation."""

from __future__ import annotations

from typing import Any

from ...text.call_schema import Tool
from ...text.chat import Conversation, Thinking
from .chat_request import AllowedChoice, ChatRequest, Message, NamedTool, ToolDefinition
from .formats import constraint_of


def conversation_of(body: ChatRequest) -> Conversation:
    """What the request asks for, in neutral form."""
    return Conversation(
        messages=plain_messages(body.messages),
        tools=tuple(_tool(tool) for tool in body.tools or ()),
        tool_choice=_tool_choice(body),
        allowed=_allowed(body),
        parallel=body.parallel_tool_calls is not False,
        thinking=_thinking(body),
        form=constraint_of(body.response_format),
        continue_last=_continues(body),
        variables=body.chat_template_kwargs or {},
    )


def plain_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as plain dicts without what was left out."""
    return [message.model_dump(exclude_none=True) for message in messages]


def _tool(tool: ToolDefinition) -> Tool:
    function = tool.function
    return Tool(function.name, function.description or "", function.parameters or {}, bool(function.strict))


def _tool_choice(body: ChatRequest) -> str:
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        return f"named:{choice.function.name}"
    if isinstance(choice, AllowedChoice):
        return choice.allowed_tools.mode
    return choice or ("auto" if body.tools else "none")


def _allowed(body: ChatRequest) -> list[str] | None:
    choice = body.tool_choice
    return [tool.function.name for tool in choice.allowed_tools.tools] if isinstance(choice, AllowedChoice) else None


def _thinking(body: ChatRequest) -> Thinking:
    """Whichever of the ways to ask for thinking is used; the plainest first."""
    enabled = body.enable_thinking
    if enabled is None and isinstance(given := (body.chat_template_kwargs or {}).get("enable_thinking"), bool):
        enabled = given
    effort: str | None = body.reasoning_effort
    budget = body.thinking_budget
    if body.thinking:
        enabled = {"enabled": True, "disabled": False}.get(body.thinking.type, enabled)
        budget = body.thinking.budget_tokens if budget is None else budget
    if body.reasoning:
        enabled = body.reasoning.enabled if enabled is None else enabled
        effort = effort or body.reasoning.effort
        budget = body.reasoning.max_tokens if budget is None else budget
    return Thinking(enabled, effort, budget)


def _continues(body: ChatRequest) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = body.messages[-1]
    if last.role != "assistant" or last.tool_calls or last.prefix is False:
        return False
    return body.continue_final_message is not False
