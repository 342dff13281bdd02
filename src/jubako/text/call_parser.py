"""One call, read while it is written. See `call_schema` for the spelling.

A value may hold anything, closing tags too: it ends only where its closing tag is followed by a parameter that may come
next, or by the end of the function and the token `</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from .call_schema import Parameter, Tool
from .call_spelling import EXACT, LOOSE

_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')


class CallParser:
    """Takes the text after `<tool_call>`; gives the JSON text of the arguments piece by piece.

    ordered: parameters come in the schema's order, as a mask holds them to. `name` is set once the head is read;
    `text` is all that was read, for a call that turns out to be none; `wrong` says that it is none.
    """

    def __init__(self, tools: Mapping[str, Tool], ordered: bool) -> None:
        self.name: str | None = None
        self.wrong = False
        self._read: list[str] = []
        self._tools = tools
        self._ordered = ordered
        self._spelling = EXACT if ordered else LOOSE
        self._rest = ""  # read, not yet understood
        self._given: list[str] = []
        self._value: Parameter | None = None  # the parameter whose value is being read
        self._begun = False  # whether anything of a string's JSON is out

    @property
    def text(self) -> str:
        return "".join(self._read)

    def push(self, text: str) -> str:
        """The further JSON text that is certain after `text`."""
        self._read.append(text)
        self._rest += text
        out = "" if self.name else self._head()
        while self.name and not self.wrong:
            piece, more = self._within_value() if self._value else self._between()
            out += piece
            if not more:
                break
        return out

    def close(self) -> str | None:
        """The rest of the JSON if the token `</tool_call>` ends the call here; None if it is text like any other."""
        if self.name and not self.wrong:
            spelling = self._spelling
            if self._value is None and spelling.end.fullmatch(self._rest):
                return "}" if self._given else "{}"
            at = self._rest.rfind(spelling.close)
            ended = at >= 0 and spelling.end.fullmatch(self._rest, at + len(spelling.close))
            if self._value and ended and self._may_end():
                return self._finished_value(at) + "}"
        return None

    def _head(self) -> str:
        match = self._spelling.head.match(self._rest)
        if match is None:
            self.wrong = not self._spelling.may_become_head(self._rest)
        elif match[1] not in self._tools:
            self.wrong = True
        else:
            self.name = match[1]
            self._rest = self._rest[match.end() :]
        return ""

    def _between(self) -> tuple[str, bool]:
        match = self._spelling.parameter.match(self._rest)
        if match is None:
            ending = self._spelling.may_become_end(self._rest)
            self.wrong = not (ending or self._spelling.may_become_parameter(self._rest, None))
            return "", False
        return self._begin(match[1], match.end()), True

    def _begin(self, name: str, end: int) -> str:
        """Enter the value of a parameter whose opening tag ends at `end`."""
        assert self.name
        self._value = self._tools[self.name].argument(name)
        self._begun = False
        self._rest = self._rest[end:]
        separator = ", " if self._given else "{"
        self._given.append(name)
        return f"{separator}{json.dumps(name, ensure_ascii=False)}: "

    def _within_value(self) -> tuple[str, bool]:
        assert self._value
        close = self._spelling.close
        at = self._rest.find(close)
        while at >= 0:
            match = self._spelling.parameter.match(self._rest, at + len(close))
            if match and self._may_follow(match[1]) and not self._within_json_string(at):
                out = self._finished_value(at)
                return out + self._begin(match[1], match.end()), True
            if self._undecided(self._rest[at + len(close) :]):
                break
            at = self._rest.find(close, at + 1)
        if self._value.types != {"string"}:
            return "", False
        return self._certain(at), False

    def _certain(self, at: int) -> str:
        """JSON of the string's text that can't belong to its closing tag, which may begin at `at`."""
        loose = self._spelling.loose  # then a line break before the value and one after it may be missing
        end = at if at >= 0 else len(self._rest) - _overlap(self._rest, self._spelling.close)
        if loose and end > 0 and self._rest[end - 1] == "\n":
            end -= 1
        start = int(loose and not self._begun and self._rest.startswith("\n"))
        if end <= start:
            return ""
        out = ("" if self._begun else '"') + json.dumps(self._rest[start:end], ensure_ascii=False)[1:-1]
        self._begun = True
        self._rest = self._rest[end:]
        return out

    def _finished_value(self, at: int) -> str:
        """What is still missing of the value's JSON; its closing tag begins at `at`."""
        assert self._value
        text = self._rest[:at]
        if self._spelling.loose:
            text = (text if self._begun else text.removeprefix("\n")).removesuffix("\n")
        out = json.dumps(text, ensure_ascii=False)[1:] if self._begun else self._value.json_text(text)
        self._value = None
        return out

    def _may_follow(self, name: str) -> bool:
        assert self.name
        tool = self._tools[self.name]
        if self._ordered:
            return name in tool.following(self._given)[0]
        known = {parameter.name for parameter in tool.arguments}
        return name not in self._given and (name in known or not known)

    def _may_end(self) -> bool:
        assert self.name
        return not self._ordered or self._tools[self.name].following(self._given)[1]

    def _within_json_string(self, end: int) -> bool:
        """Whether the value so far is JSON inside one of its strings; a closing tag there is no closing tag."""
        assert self._value
        text = self._rest[:end].lstrip()
        return self._value.types != {"string"} and text[:1] in ("{", "[") and len(_QUOTE.findall(text)) % 2 == 1

    def _undecided(self, tail: str) -> bool:
        """Whether what follows a closing tag may still become what ends the value."""
        if self._may_end() and self._spelling.may_become_end(tail):
            return True
        return self._spelling.may_become_parameter(tail, self._names(tail))

    def _names(self, tail: str) -> list[str]:
        """The names that may come next; where any name may, the one that `tail` spells so far."""
        assert self.name
        known = [parameter.name for parameter in self._tools[self.name].arguments]
        free = tail.partition("<parameter=")[2]
        return [name for name in known or [free.partition(">")[0]] if "\n" not in name and self._may_follow(name)]


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
