"""A request in the form of Responses to the neutral conversation."""

from __future__ import annotations

import base64
import json
from typing import Any

from ...core import Constraint
from ...text.call_schema import Tool
from ...text.chat import Conversation, Thinking
from ..problems import Refused
from .request import AllowedChoice, Item, NamedTool, Part, ResponsesRequest, ToolDefinition

_SEALED = "jubako:"  # how the thinking begins that goes to the client and back as encrypted_content


def conversation_of(body: ResponsesRequest) -> Conversation:
    """What the request asks for, in neutral form. Raises Refused for what needs something stored."""
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(body, name):
            raise Refused("invalid", f"{name}: this server stores nothing; send the whole conversation as input", name)
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += _messages(body.input)
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()) if tool.type == "function")
    if not messages:
        raise Refused("invalid", "input is empty; give at least one item", "input")
    last = messages[-1]
    return Conversation(
        messages=messages,
        tools=tools,
        tool_choice=_choice(body, bool(tools)),
        allowed=_allowed(body),
        parallel=body.parallel_tool_calls is not False,
        thinking=Thinking(effort=body.reasoning.effort if body.reasoning else None),
        form=_form(body),
        continue_last=last["role"] == "assistant" and not last.get("tool_calls"),
    )


def sealed(thinking: str) -> str:
    """The thinking as encrypted_content. It is no secret; the client only is not meant to read it."""
    return base64.b64encode((_SEALED + thinking).encode()).decode()


def _unsealed(content: str | None) -> str:
    try:
        text = base64.b64decode(content or "", validate=True).decode()
    except ValueError:
        return ""
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else ""


def _messages(items: list[Item]) -> list[dict[str, Any]]:
    """Messages; what the assistant thought, said and called in a row is one."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        match item.type or "message":
            case "message":
                if item.role is None:
                    raise Refused("invalid", f"{where}.role is missing", f"{where}.role")
                if item.role != "assistant":
                    messages.append({"role": item.role, "content": _parts(item.content)})
                else:
                    message = _assistant(messages, "content", "tool_calls")
                    message["content"] = _parts(item.content)
            case "reasoning":
                _assistant(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = _thinking(
                    item
                )
            case "function_call":
                function = {"name": item.name, "arguments": item.arguments or ""}
                calls = _assistant(messages).setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "function": function})
            case "function_call_output":
                messages.append({"role": "tool", "content": _parts(item.output), "tool_call_id": item.call_id})
            case other:
                raise Refused("invalid", f"{where} is of type {other!r:.50}, which this server can't read", where)
    return messages


def _assistant(messages: list[dict[str, Any]], *absent: str) -> dict[str, Any]:
    """The assistant's message to add to: the last one if it has none of `absent` yet, else a new one."""
    if not messages or messages[-1]["role"] != "assistant" or any(key in messages[-1] for key in absent):
        messages.append({"role": "assistant"})
    return messages[-1]


def _parts(content: str | list[Part] | None) -> str | list[dict[str, Any]] | None:
    return [part.model_dump(exclude_none=True) for part in content] if isinstance(content, list) else content


def _thinking(item: Item) -> str:
    parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
    return "\n\n".join(part.text for part in parts if part.text) or _unsealed(item.encrypted_content)


def _tool(tool: ToolDefinition, where: str) -> Tool:
    if not tool.name:
        raise Refused("invalid", f"{where}.name is missing", f"{where}.name")
    return Tool(tool.name, tool.description or "", tool.parameters or {}, bool(tool.strict))


def _choice(body: ResponsesRequest, has_tools: bool) -> str:
    if isinstance(body.tool_choice, NamedTool):
        return f"named:{body.tool_choice.name}"
    if isinstance(body.tool_choice, AllowedChoice):
        return body.tool_choice.mode
    return body.tool_choice or ("auto" if has_tools else "none")


def _allowed(body: ResponsesRequest) -> list[str] | None:
    choice = body.tool_choice
    if not isinstance(choice, AllowedChoice):
        return None
    return [tool.name or "" for tool in choice.tools if tool.type == "function"]


def _form(body: ResponsesRequest) -> Constraint | None:
    form = body.text.format if body.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("json_object")
    if form.schema_ is None:
        raise Refused("invalid", "text.format.schema is missing; a format of type json_schema needs it", "text.format")
    return Constraint("json_schema", json.dumps(form.schema_))
