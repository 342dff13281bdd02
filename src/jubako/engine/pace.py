"""How a prompt and those who decode share the time."""

from __future__ import annotations

PAUSE = 0.25  # seconds that a chunk of a prompt may hold up those who decode
SMALLEST = 64  # tokens of a chunk


class Pace:
    """After a chunk of a prompt, decoding may use as long as it took before the next; chunks are short then.

    most: tokens of a chunk when nobody waits for it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._rate = 0.0  # prompt tokens per second
        self._owed = 0.0  # seconds of decoding before the next chunk

    @property
    def prompt_is_due(self) -> bool:
        return self._owed <= 0

    def chunk(self, others: bool) -> int:
        """Tokens to read next. others: somebody decodes meanwhile."""
        if not others:
            return self.most
        return min(self.most, max(SMALLEST, int(self._rate * PAUSE) // SMALLEST * SMALLEST))

    def read(self, tokens: int, seconds: float, others: bool) -> None:
        """Tell of a chunk."""
        rate = tokens / seconds
        self._rate = rate if self._rate == 0 else 0.7 * self._rate + 0.3 * rate
        self._owed = seconds if others else 0.0

    def decoded(self, seconds: float) -> None:
        """Tell of a step."""
        self._owed -= seconds
