"""Chats to text and ids, through the template that came with the model.

The template is code from a downloaded file, so it runs in a process of its own (`template_worker.py`, kept by
`worker.py`): limits inside one process can't hold back a single long operation such as 10 ** 10 ** 10, a process can be
killed. A render costs one round trip over a pipe.

Special tokens come from the template's own text only. The worker returns which spans of the text the template
spelled; special tokens are looked for inside those, all else, such as `<|im_end|>` in a message, is plain text. The
values a template sees are not altered for that, so it trims, splits and compares as its author meant.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import RequestError, TemplateError
from .chatml import CHATML
from .tokenizer import Tokenizer
from .worker import WorkerProcess

_WORKER = Path(__file__).with_name("template_worker.py")
_MEMORY = 512 << 20  # bytes the worker may hold
_SOURCE = 4 << 20  # characters a template may have

Messages = Sequence[Mapping[str, Any]]
Spans = list[tuple[int, int]]


class ChatTemplate:
    """A chat template, and the process that renders it, started for the first chat. Threads may share it.

    source: the template in Jinja, None for plain ChatML. timeout: seconds of wall time a render may take.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer, timeout: float = 5.0) -> None:
        self.source = CHATML if source is None else source
        if len(self.source) > _SOURCE:
            raise TemplateError(f"the chat template has {len(self.source)} characters; the limit is {_SOURCE}")
        self._tokenizer = tokenizer
        self._timeout = timeout
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text of a chat. `kwargs` are the template's own variables, such as enable_thinking.

        Raises TemplateError with the template's message where it refuses the chat.
        """
        return self._render(messages, tools, add_generation_prompt, kwargs)[0]

    def encode(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The ids of a chat: what `render` gives, special tokens only where the template itself spells them."""
        return self._tokenizer.encode_spans(*self._render(messages, tools, add_generation_prompt, kwargs))

    def close(self) -> None:
        """End the process; the next render starts a new one."""
        with self._lock:
            if self._worker:
                self._worker.close()

    def _render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: dict[str, Any],
    ) -> tuple[str, Spans]:
        variables = {**kwargs, "tools": tools or None, "add_generation_prompt": add_generation_prompt}
        chat = [_with_parsed_arguments(message) for message in messages]
        if "developer" not in self.source:
            chat = [{**m, "role": "system"} if m.get("role") == "developer" else m for m in chat]
        try:
            return self._ask({**variables, "messages": chat})
        except TemplateError:
            moved = _with_system_first(chat)
            if moved == chat:
                raise
            try:
                return self._ask({**variables, "messages": moved})
            except TemplateError:
                pass  # the first refusal says more about the chat that was given
            raise

    def _ask(self, variables: dict[str, Any]) -> tuple[str, Spans]:
        try:
            request = json.dumps(variables).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the chat is not plain data: {error}") from error
        with self._lock:
            if not (self._worker and self._worker.alive()):
                self._worker = WorkerProcess(_WORKER, self._setup())
            try:
                answer = self._worker.ask(request, self._timeout)
            except TimeoutError:
                raise TemplateError(f"the chat template did not finish within {self._timeout:g} s") from None
            except (OSError, ValueError) as error:
                raise TemplateError(f"the chat template's process ended: {error}") from None
        if "error" in answer:
            said = "".join(c if c.isprintable() else "?" for c in answer["error"])  # not to the terminal
            raise TemplateError(f"the chat template failed: {said}")
        return answer["text"], [(start, end) for start, end in answer["spans"]]

    def _setup(self) -> bytes:
        names = {"bos_token": self._tokenizer.bos_id, "eos_token": self._tokenizer.eos_id}
        texts = {
            name: self._tokenizer.token_bytes(i).decode("utf-8", "replace")
            for name, i in names.items()
            if i is not None
        }
        seconds = int(self._timeout) + 1
        return json.dumps({"source": self.source, "globals": texts, "memory": _MEMORY, "seconds": seconds}).encode()


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Tool-call arguments as the object that templates iterate over; clients send it as JSON text."""
    message = dict(message)
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        message["tool_calls"] = [_with_parsed_call(call) if isinstance(call, Mapping) else call for call in calls]
    return message


def _with_parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_parsed_call(call["function"])}
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return {**call, "arguments": arguments} if isinstance(arguments, Mapping) else dict(call)


def _with_system_first(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For a template that takes one system message, at the start: leading ones become one, later ones the user's."""
    leading = next((i for i, message in enumerate(chat) if message.get("role") != "system"), len(chat))
    head = chat[:leading]
    if len(head) > 1:
        contents = [message.get("content") or "" for message in head]
        head = [{**head[0], "content": _paragraphs(contents)}]
    return head + [{**m, "role": "user"} if m.get("role") == "system" else m for m in chat[leading:]]


def _paragraphs(contents: list[Any]) -> Any:
    """Several contents as one: text if all are, else a list of parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": "\n\n"}] if parts else []
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts
