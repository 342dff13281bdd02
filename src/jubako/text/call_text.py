"""Regular expressions for the text of strings in calls, where schemas bound it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import llguidance

from .grammar_source import escaped_expression

ANY = "(?s:.*)"


def text_bounds(schema: Mapping[str, Any]) -> list[str]:
    """Regular expressions, all of which the text of a string must match; none where it may be any."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return ["|".join(quoted(value) for value in values if isinstance(value, str))]
    bounds = []
    if isinstance(schema.get("pattern"), str):
        bounds.append(whole_expression(schema["pattern"]))
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    if isinstance(low, int) and (low > 0 or isinstance(high, int)):
        bounds.append(f"(?s:.{{{low},{high}}})")
    return bounds


def whole_expression(pattern: str) -> str:
    """What matches a whole text in which `pattern` of a schema is found; its alternatives may each be anchored."""
    ways = []
    for way in _alternatives(pattern):
        ends = way.endswith("$") and not way.endswith("\\$")
        body = way.removeprefix("^")[: -1 if ends else None]
        ways.append(f"{'' if way.startswith('^') else ANY}({body}){'' if ends else ANY}")
    return llguidance.regex_to_lark("|".join(ways), "dw").replace("\\/", "/")


def _alternatives(pattern: str) -> list[str]:
    """The parts between the bars that stand outside of groups and classes."""
    ways, depth, in_class = [""], 0, False
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        in_class = token == "[" or (in_class and token != "]")
        if not in_class:
            depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0 and not in_class:
            ways.append("")
        else:
            ways[-1] += token
    return ways


def literal(text: str) -> str:
    """A string of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def expression(text: str) -> str:
    """A regular expression of a Lark grammar that matches `text` alone."""
    return escaped_expression(quoted(text))


def quoted(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$-&~#" else c for c in text)
