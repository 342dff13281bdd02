"""Pieces of an answer to Anthropic's content blocks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Any

from ...text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart

Event = dict[str, Any]


def new_call_id() -> str:
    return f"toolu_{token_hex(12)}"


class BlockWriter:
    """Writes the events of content blocks: one block is open at a time, and closed where another kind begins.

    shows_thinking: whether thinking is told; else its block has a signature only.
    """

    def __init__(self, shows_thinking: bool = True) -> None:
        self._shows = shows_thinking
        self._index = -1
        self._kind = ""  # of the open block
        self._digest = hashlib.sha256()

    def write(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """The events of these pieces."""
        for piece in pieces:
            match piece:
                case ThinkingText(text):
                    yield from self._enter("thinking", {"thinking": "", "signature": ""})
                    self._digest.update(text.encode())
                    if self._shows:
                        yield self._delta("thinking_delta", "thinking", text)
                case ContentText(text):
                    yield from self._enter("text", {"text": ""})
                    yield self._delta("text_delta", "text", text)
                case ToolCallStart(_, id, name):
                    yield from self.close()
                    yield from self._enter("tool_use", {"id": id, "name": name, "input": {}})
                case ToolCallArguments(_, text):
                    yield self._delta("input_json_delta", "partial_json", text)
                case ToolCallEnd():
                    yield from self.close()

    def close(self) -> Iterator[Event]:
        """The end of the open block, if one is."""
        if self._kind == "thinking":
            # Nothing is verified here; clients expect that it is there, and send it back.
            signature = base64.b64encode(self._digest.digest()).decode()
            yield self._delta("signature_delta", "signature", signature)
        if self._kind:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = ""

    def _enter(self, kind: str, fields: dict[str, Any]) -> Iterator[Event]:
        if self._kind != kind:
            yield from self.close()
            self._index += 1
            self._kind = kind
            self._digest = hashlib.sha256()
            yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **fields}}

    def _delta(self, kind: str, field: str, text: str) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, field: text}}


class BlockList:
    """The blocks of a whole answer. A call that was cut off is none."""

    def __init__(self, shows_thinking: bool = True) -> None:
        self._writer = BlockWriter(shows_thinking)
        self._blocks: list[dict[str, Any]] = []
        self._json: dict[int, str] = {}
        self._complete: set[int] = set()  # blocks of calls that ended by themselves

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            for event in self._writer.write([piece]):
                self._take(event)
            if isinstance(piece, ToolCallEnd):
                self._complete.add(len(self._blocks) - 1)

    def finish(self) -> list[dict[str, Any]]:
        """The blocks, in their order."""
        for event in self._writer.close():
            self._take(event)
        for index in self._complete:
            self._blocks[index]["input"] = json.loads(self._json.get(index) or "{}")
        return [b for i, b in enumerate(self._blocks) if b["type"] != "tool_use" or i in self._complete]

    def _take(self, event: Event) -> None:
        if event["type"] == "content_block_start":
            self._blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, index = event["delta"], event["index"]
            if delta["type"] == "input_json_delta":
                self._json[index] = self._json.get(index, "") + delta["partial_json"]
            else:
                [(field, text)] = [item for item in delta.items() if item[0] != "type"]
                self._blocks[index][field] += text
