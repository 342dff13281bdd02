"""One answer as it is read: the engine's events in, updates for the dialect out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..core import Event, Failed, Finished, GenerationStats, Reading, Tokens
from ..errors import RequestError
from ..text.pieces import Piece
from .ask import Ask, Delta, Done, Progress, Said, Update, Usage
from .problems import EngineFailed


class Reader:
    """Follows one choice of an ask. `ids` are the tokens so far; `done` when the last update is out."""

    def __init__(self, ask: Ask, choice: int) -> None:
        self.done = False
        self.ids: list[int] = []
        self._choice = choice
        self._parser = ask.parser()
        self._stats = GenerationStats(prompt_tokens=len(ask.prompt), finish_reason="stop")
        self._began = self._first = time.monotonic()

    def take(self, events: Sequence[Event]) -> list[Update]:
        """The updates that events which came together make: the tokens among them one delta.

        Raises RequestError or EngineFailed where the engine could not answer.
        """
        updates: list[Update] = []
        pieces: list[Piece] = []
        tokens: list[Said] = []
        for event in events:
            match event:
                case Reading(read, total, cached):
                    self._stats.cached_tokens = cached
                    updates.append(Progress(self._choice, read, total, cached))
                case Tokens():
                    self._read(event, pieces, tokens)
                    if self._parser.stopped is not None:
                        return [*updates, *self._finish(self._stats, "stop", pieces, tokens)]
                case Finished(stats):
                    return [*updates, *self._finish(stats, stats.finish_reason, pieces, tokens)]
                case Failed(kind, message):
                    raise RequestError(message) if kind == "request" else EngineFailed(message)
        if pieces or tokens:
            updates.append(Delta(self._choice, tuple(pieces), tuple(tokens)))
        return updates

    def _read(self, event: Tokens, pieces: list[Piece], tokens: list[Said]) -> None:
        now = time.monotonic()
        stats = self._stats
        if self.ids:
            stats.steps += 1
        else:
            self._first = now
            stats.prefill_seconds = now - self._began
        stats.decode_seconds = now - self._first
        for token in event.tokens:
            content = self._parser.in_content
            pieces += self._parser.push(token.id)
            tokens.append(Said(token, content))
            self.ids.append(token.id)
            if self._parser.stopped is not None:
                return

    def _finish(self, stats: GenerationStats, reason: str, pieces: list[Piece], tokens: list[Said]) -> list[Update]:
        if reason == "cancelled":
            raise EngineFailed("the engine gave the request up")
        self.done = True
        pieces += self._parser.finish(reason)
        stopped = self._parser.stopped or None
        if stopped:  # it may have been found only in what was held back
            reason = "stop_sequence"
        elif self._parser.calls and reason != "length":
            reason = "tool_calls"
        self._stats.generated_tokens = len(self.ids)
        reasoning = self._parser.thinking_tokens
        usage = Usage(self._stats.prompt_tokens, stats.cached_tokens, len(self.ids), reasoning, stats)
        last = [Delta(self._choice, tuple(pieces), tuple(tokens))] if pieces or tokens else []
        return [*last, Done(self._choice, reason, stopped, usage)]
