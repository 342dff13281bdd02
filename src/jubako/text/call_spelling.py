"""Where a value of a call ends: by the letter, as a mask holds the model to, or as models write on their own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PARAMETER, _FUNCTION = "<parameter=", "</function>"


@dataclass(frozen=True)
class Spelling:
    """close: what ends a value, if a parameter or the end follows. loose: blanks may stand between tags."""

    close: str
    loose: bool
    head: re.Pattern[str]
    parameter: re.Pattern[str]
    end: re.Pattern[str]

    def may_become_head(self, text: str) -> bool:
        return self._may_become(text, "<function=") and "\n" not in text.lstrip()

    def may_become_end(self, text: str) -> bool:
        """Whether `text` is the end of the function without its last token, or begins it."""
        tag = _FUNCTION if self.loose else _FUNCTION + "\n"
        return bool(self.end.fullmatch(text)) or self._may_become(text, tag, whole=False)

    def may_become_parameter(self, text: str, names: Iterable[str] | None) -> bool:
        """Whether `text` begins the opening tag of a parameter, one of `names` if they are given."""
        stripped = text.lstrip() if self.loose else text
        if names is None or not stripped.startswith(_PARAMETER):
            return self._may_become(text, _PARAMETER)
        return any(f"{name}>\n".startswith(stripped.removeprefix(_PARAMETER)) for name in names)

    def _may_become(self, text: str, tag: str, whole: bool = True) -> bool:
        """Whether `text` begins `tag`; `whole`: or is all of it and more."""
        text = text.lstrip() if self.loose or tag == "<function=" else text
        return tag.startswith(text) if len(text) < len(tag) else whole and text.startswith(tag)


LOOSE = Spelling(
    close="</parameter>",
    loose=True,
    head=re.compile(r"\s*<function=([^>\n]+)>"),
    parameter=re.compile(r"\s*<parameter=([^>\n]+)>"),
    end=re.compile(r"\s*</function>\s*"),
)
EXACT = Spelling(
    close="\n</parameter>\n",
    loose=False,
    head=re.compile(r"\n<function=([^>\n]+)>\n"),
    parameter=re.compile(r"<parameter=([^>\n]+)>\n"),
    end=re.compile(r"</function>\n"),
)
