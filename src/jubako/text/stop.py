"""Stop sequences in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream of text before the first stop sequence and holds back what might become one.

    The result does not depend on how the text is cut into pieces: the sequence that is complete first wins, and
    of those that end together the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None  # the stop sequence that ended the text

    def push(self, text: str) -> str:
        """The text that is safe to show. After a match, `matched` is set and everything further is dropped."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, length, self.matched = min(found)
            self._held = ""
            return text[: end + length]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text that was held back and turned out to be no stop sequence."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
