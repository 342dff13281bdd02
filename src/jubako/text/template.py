"""Chats to text and ids, through the template that came with the model.

The template is code from a downloaded file, so it runs in a process of its own (`template_worker.py`), which is kept
and asked again and again: limits inside one process can't hold back a single long operation such as 10 ** 10 ** 10, a
process can be killed. A render costs one round trip over a pipe.

Special tokens come from the template's own text only. The worker returns which spans of the text the template
spelled; special tokens are looked for inside those, all else, such as `<|im_end|>` in a message, is plain text. The
values a template sees are not altered for that, so it trims, splits and compares as its author meant.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..errors import RequestError, TemplateError
from .chatml import CHATML
from .tokenizer import Tokenizer

_WORKER = Path(__file__).with_name("template_worker.py")
_START = 30.0  # seconds the worker may take to start
_MEMORY = 512 << 20  # bytes the worker may hold
_ANSWER = 256 << 20  # bytes an answer may have
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
        self._worker: _Worker | None = None

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
                self._worker = _Worker(self._setup())
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


class _Worker:
    """One worker process; whatever goes wrong ends it. It also ends by itself when our side of the pipe closes."""

    def __init__(self, setup: bytes) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],  # -P: its own folder is no place to import from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "TZ": os.environ.get("TZ", "")},
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._close = weakref.finalize(self, _end, self._process)
        self._setup: bytes | None = setup

    def alive(self) -> bool:
        return self._close.alive and self._process.poll() is None

    def close(self) -> None:
        self._close()

    def ask(self, request: bytes, timeout: float) -> dict[str, Any]:
        """One exchange. Raises TimeoutError, another OSError or ValueError, and then the process is gone."""
        try:
            if self._setup:
                self._exchange(self._setup, time.monotonic() + _START)
                self._setup = None
            return self._exchange(request, time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: bytes, deadline: float) -> dict[str, Any]:
        """Write and read as the pipes allow, in one thread."""
        answer = bytearray()
        expected = 4
        unsent = memoryview(len(request).to_bytes(4, "big") + request)
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            selector.register(self._out, selectors.EVENT_READ)
            while len(answer) < expected:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is self._in:
                        unsent = unsent[os.write(self._in.fileno(), unsent[:65536]) :]
                        if not unsent:
                            selector.unregister(self._in)
                    else:
                        answer += _read(self._out)
                if len(answer) >= 4:
                    expected = 4 + int.from_bytes(answer[:4], "big")
                    if expected > _ANSWER:
                        raise OSError("its text is too long")
        result: dict[str, Any] = json.loads(answer[4:])
        return result


def _read(stream: IO[bytes]) -> bytes:
    data = os.read(stream.fileno(), 1 << 20)
    if not data:
        raise OSError("it used too much memory or time")
    return data


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()


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
