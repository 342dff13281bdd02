"""An answer that is text and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.pieces import ContentText, Piece
from ..text.stop import StopMatcher
from ..text.tokenizer import StreamDecoder, Tokenizer


class PlainText:
    """Text up to a stop sequence; no thinking, no calls."""

    in_content = True
    calls = thinking_tokens = 0

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stop = StopMatcher(stop)

    @property
    def stopped(self) -> str | None:
        """The stop sequence that ended the text."""
        return self._stop.matched

    def push(self, token_id: int) -> list[Piece]:
        """What may be shown with this token; nothing for ids past the vocabulary (padding rows of the head)."""
        text = self._decoder.push(token_id) if token_id < self._decoder.vocab_size else ""
        return self._piece(self._stop.push(text))

    def finish(self, reason: str) -> list[Piece]:
        """What was held back."""
        text = self._stop.push(self._decoder.finish())
        return self._piece(text + self._stop.finish())

    def _piece(self, text: str) -> list[Piece]:
        return [ContentText(text)] if text else []
