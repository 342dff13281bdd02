"""Pieces of an answer to output items, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Any

from ...text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart
from .convert import sealed

Event = dict[str, Any]


class ItemWriter:
    """Writes items one after another: thinking, text and each call are items; `output` are those so far.

    summary: thinking is told as a summary. sealed: thinking goes along as encrypted_content, too. Events lack their
    sequence numbers. A call that was cut off is announced, but never done, and is no item.
    """

    def __init__(self, summary: bool, sealed: bool) -> None:
        self.output: list[dict[str, Any]] = []
        self._summary, self._sealed = summary, sealed
        self._item: dict[str, Any] | None = None  # the open one
        self._index = -1
        self._text = ""  # of the open one

    def write(self, pieces: Iterable[Piece], logprobs: list[dict[str, Any]] | None = None) -> Iterator[Event]:
        """The events of these pieces. logprobs: of the content tokens among them."""
        for piece in pieces:
            match piece:
                case ThinkingText(text):
                    yield from self._enter("reasoning", "rs", {"summary": []})
                    self._text += text
                    yield self._event(f"{self._thinking}.delta", **self._place, delta=text)
                case ContentText(text):
                    yield from self._enter("message", "msg", {"role": "assistant", "content": []})
                    self._text += text
                    told, logprobs = logprobs or [], None
                    self._logprobs += told
                    yield self._event("output_text.delta", content_index=0, delta=text, logprobs=told)
                case ToolCallStart(_, id, name):
                    yield from self.close()
                    yield from self._enter("function_call", "fc", {"call_id": id, "name": name, "arguments": ""})
                case ToolCallArguments(_, text):
                    self._text += text
                    yield self._event("function_call_arguments.delta", delta=text)
                case ToolCallEnd():
                    yield from self._end_call()

    def close(self, complete: bool = True) -> Iterator[Event]:
        """The end of the open item; `complete`: it was not cut off."""
        item = self._item
        if item is None:
            return
        if item["type"] == "reasoning":
            yield from self._end_thinking(item)
        elif item["type"] == "message":
            yield from self._end_text(item, complete)
        self._item = None

    def _enter(self, kind: str, short: str, fields: dict[str, Any]) -> Iterator[Event]:
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self.close()
        self._index += 1
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        self._item = {"id": f"{short}_{token_hex(12)}", "type": kind, "status": "in_progress", **fields}
        yield {"type": "response.output_item.added", "output_index": self._index, "item": dict(self._item)}
        if kind == "message":
            yield self._event("content_part.added", content_index=0, part=self._text_part())
        elif kind == "reasoning":
            part = {"type": self._part_type, "text": ""}
            yield self._event(f"{self._part}.added", **self._place, part=part)

    def _end_text(self, item: dict[str, Any], complete: bool) -> Iterator[Event]:
        part = self._text_part()
        yield self._event("output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
        yield self._event("content_part.done", content_index=0, part=part)
        yield self._done({**item, "status": "completed" if complete else "incomplete", "content": [part]})

    def _end_thinking(self, item: dict[str, Any]) -> Iterator[Event]:
        part = {"type": self._part_type, "text": self._text}
        yield self._event(f"{self._thinking}.done", **self._place, text=self._text)
        yield self._event(f"{self._part}.done", **self._place, part=part)
        told = {"summary": [part]} if self._summary else {"summary": [], "content": [part]}
        kept = {"encrypted_content": sealed(self._text)} if self._sealed else {}
        yield self._done({**item, "status": "completed", **told, **kept})

    def _end_call(self) -> Iterator[Event]:
        assert self._item
        item = {**self._item, "status": "completed", "arguments": self._text}
        yield self._event("function_call_arguments.done", name=item["name"], arguments=self._text)
        yield self._done(item)
        self._item = None

    def _done(self, item: dict[str, Any]) -> Event:
        self.output.append(item)
        return {"type": "response.output_item.done", "output_index": self._index, "item": item}

    def _event(self, kind: str, **fields: Any) -> Event:
        assert self._item
        return {"type": f"response.{kind}", "item_id": self._item["id"], "output_index": self._index, **fields}

    def _text_part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": list(self._logprobs)}

    @property
    def _thinking(self) -> str:
        return "reasoning_summary_text" if self._summary else "reasoning_text"

    @property
    def _part(self) -> str:
        return "reasoning_summary_part" if self._summary else "content_part"

    @property
    def _part_type(self) -> str:
        return "summary_text" if self._summary else "reasoning_text"

    @property
    def _place(self) -> dict[str, int]:
        return {"summary_index": 0} if self._summary else {"content_index": 0}
