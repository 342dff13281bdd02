"""Messages of any dialect as the plain form that chat templates understand.

Neutral form, what dialects give: {role, content, reasoning_content?, tool_calls?, tool_call_id?, name?}. role: system,
developer, user, assistant, tool. content: a string, None, or parts {type: "text", text}; parts of other types are
refused. tool_calls: [{id, function: {name, arguments: an object, or text that should be the JSON of one}}].
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXTS = ("text", "input_text", "output_text", "refusal")


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with string contents and calls with parsed arguments; the roles as they are, developer as system.

    Raises RequestError naming the message and the part that can't be read.
    """
    if not messages:
        raise RequestError("messages is empty; give at least one message")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is {message!r:.50}; it must be an object with a role and a content")
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r:.50}; it can be {', '.join(ROLES)}")
    role = {"developer": "system", "function": "tool"}.get(str(role), str(role))
    plain: dict[str, Any] = {"role": role, "content": _text(message.get("content"), f"{where}.content")}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            plain["reasoning_content"] = reasoning
        calls = message.get("tool_calls")
        if calls:
            if not isinstance(calls, Sequence) or isinstance(calls, str):
                raise RequestError(f"{where}.tool_calls is not a list")
            plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    for key in ("tool_call_id", "name"):
        if isinstance(message.get(key), str):
            plain[key] = message[key]
    return plain


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is {content!r:.50}; it must be text or a list of parts")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} is {part!r:.50}; it must be a part with a type")
    kind = part.get("type", "text" if "text" in part else None)
    text = part.get("text", part.get("refusal"))
    if kind in _TEXTS:
        if not isinstance(text, str):
            raise RequestError(f"{where}.{'refusal' if kind == 'refusal' else 'text'} must be a string")
        return text
    name = str(kind).removeprefix("input_").removesuffix("_url")
    if name in ("image", "audio", "video", "file", "document"):
        who = "this model file has no vision part, it" if name in ("image", "video") else "this model"
        article = "an" if name[0] in "ai" else "a"
        raise RequestError(f"{where} is of type {kind!r}, {article} {name}; {who} reads text only")
    raise RequestError(f"{where} is of type {kind!r:.50}; parts can be of type 'text'")


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} has no function with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where}.function.arguments is {arguments!r:.50}; it must be an object")
    plain = {"type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}
    return {**plain, "id": call["id"]} if isinstance(call.get("id"), str) else plain


def _parsed(text: str) -> Mapping[str, Any]:
    """The object that a model's text spells; text that spells none is kept whole, as one parameter."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, Mapping) else {"arguments": text}


def with_one_system(messages: list[dict[str, Any]], late: bool) -> list[dict[str, Any]]:
    """Leading system messages as one; later ones stay where `late`, else they are the user's.

    Without any message of the user's or a tool's, the system message is taken for the user's.
    """
    leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    head = [message["content"] for message in messages[:leading]]
    rest = messages[leading:] if late else [_as_user(message) for message in messages[leading:]]
    system = [{"role": "system", "content": "\n\n".join(head)}] if head else []
    if not any(message["role"] in ("user", "tool") for message in rest):
        system = [_as_user(message) for message in system]
    return system + rest


def _as_user(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "user"} if message["role"] == "system" else message
