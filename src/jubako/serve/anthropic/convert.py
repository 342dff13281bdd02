"""A request in Anthropic's form to the neutral conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...core import Constraint
from ...text.call_schema import Tool
from ...text.chat import Conversation, Thinking
from ..problems import Refused
from .request import Block, CountRequest, Inner, Message, Source, TextBlock, ToolDefinition

# Claude Code begins its system prompt with a line that differs from call to call; it is for the service's books, and
# would make the whole prompt be read again.
_BOOKKEEPING = "x-anthropic-billing-header:"


def conversation_of(body: CountRequest) -> Conversation:
    """What the request asks for, in neutral form. Raises Refused for tools and blocks that are not to be had here."""
    messages = [{"role": "system", "content": text} for text in _system(body)]
    for number, message in enumerate(body.messages):
        messages += _messages(message, f"messages.{number}")
    output = body.output_config
    form = body.output_format or (output and output.format)
    last = body.messages[-1]
    return Conversation(
        messages=messages,
        tools=tuple(_tool(tool, f"tools.{number}") for number, tool in enumerate(body.tools or ())),
        tool_choice=_choice(body),
        parallel=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        thinking=_thinking(body),
        form=Constraint("json_schema", json.dumps(form.schema_)) if form else None,
        continue_last=last.role == "assistant" and not messages[-1].get("tool_calls"),
    )


def _system(body: CountRequest) -> list[str]:
    given = body.system
    texts = [given] if isinstance(given, str) else [block.text for block in given or ()]
    text = "\n\n".join(text for text in texts if text and not text.startswith(_BOOKKEEPING))
    return [text] if text else []


def _messages(message: Message, where: str) -> list[dict[str, Any]]:
    """The neutral messages that one of Anthropic's is: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    blocks = [(block, f"{where}.content.{i}") for i, block in enumerate(message.content)]
    results = [_result(block, place) for block, place in blocks if block.type == "tool_result"]
    texts = [part for block, place in blocks if block.type not in _OTHERS for part in _texts(block, place)]
    calls = [_call(block, place) for block, place in blocks if block.type == "tool_use"]
    thoughts = [block.thinking or "" for block, _ in blocks if block.type == "thinking"]
    if results and not texts:
        return results
    neutral: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
    if calls:
        neutral["tool_calls"] = calls
    if any(thoughts):
        neutral["reasoning_content"] = "\n\n".join(thoughts)
    return [*results, neutral]


_OTHERS = ("tool_result", "tool_use", "thinking", "redacted_thinking")


def _texts(block: Block | Inner | TextBlock, where: str) -> Iterator[str]:
    """What a block says. Raises Refused for a block that is no text."""
    source = None if isinstance(block, TextBlock) else block.source
    if block.type == "text" and block.text is not None:
        yield block.text
    elif isinstance(block, TextBlock):
        return
    elif block.type == "text":
        raise Refused("invalid", f"{where}.text must be a string")
    elif block.type == "document" and isinstance(source, Source) and source.type in ("text", "content"):
        inner = _content(source.content, f"{where}.source.content") if source.type == "content" else [source.data]
        yield "\n".join(text for text in (block.title, *inner) if text)
    elif block.type == "search_result":
        yield "\n".join(text for text in (block.title, *_content(block.content, f"{where}.content")) if text)
    elif block.type in ("image", "document"):
        raise Refused(
            "invalid",
            f"{where} is of type {block.type!r} and no text; this model file has no vision part, it reads text only",
        )
    else:
        raise Refused("invalid", f"{where} is of type {block.type!r:.50}, which this server does not know")


def _content(content: str | Sequence[Inner | TextBlock] | None, where: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [text for i, block in enumerate(content) for text in _texts(block, f"{where}.{i}")]


def _result(block: Block, where: str) -> dict[str, Any]:
    text = "\n".join(_content(block.content, f"{where}.content"))
    if block.is_error and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return {"role": "tool", "content": text, "tool_call_id": block.tool_use_id}


def _call(block: Block, where: str) -> dict[str, Any]:
    if not block.name:
        raise Refused("invalid", f"{where}.name is missing")
    return {"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}}


def _tool(tool: ToolDefinition, where: str) -> Tool:
    if tool.type not in (None, "custom") or tool.input_schema is None:
        said = f"is of type {tool.type!r:.50}" if tool.type not in (None, "custom") else "has no input_schema"
        raise Refused("invalid", f"{where} {said}; this server runs no tools, give one of your own")
    return Tool(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))


def _choice(body: CountRequest) -> str:
    choice = body.tool_choice
    if choice is None:
        return "auto" if body.tools else "none"
    if choice.type == "tool":
        if not choice.name:
            raise Refused("invalid", "tool_choice.name is missing")
        return f"named:{choice.name}"
    return {"any": "required"}.get(choice.type, choice.type)


def _thinking(body: CountRequest) -> Thinking:
    config = body.thinking
    effort = body.output_config.effort if body.output_config else None
    if config is None or config.type == "disabled":
        return Thinking(enabled=False)
    return Thinking(True, effort, config.budget_tokens if config.type == "enabled" else None)
