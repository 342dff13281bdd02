"""Grammars over the call syntax: answers that are valid calls, their arguments following the schemas.

A string's text runs to the closing tag that `call_parser` takes for one, so that an argument may quote the syntax. The
grammars are lists of llguidance's, as the constraint kind "composed" takes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core import Constraint
from ..errors import RequestError
from .answer import Marks
from .call_schema import Parameter, Tool, resolved, schema_types
from .grammar_check import check_constraint
from .grammar_source import escaped_expression, with_options

_ANY = "(?s:.*)"
_NAME = re.compile(r"[^>\n]+")


class CallGrammar:
    """The rule `call` for calls of some tools, which begins after `<tool_call>`; `parts` are grammars it refers to."""

    def __init__(self, tools: Sequence[Tool], marks: Marks) -> None:
        """Raises RequestError for a strict tool whose schema can't be honoured."""
        self._rules: list[str] = []
        self.parts: list[dict[str, Any]] = []
        self._close = f"<[{marks.end_call}]>"
        names = [self._function(tool, f"f{i}") for i, tool in enumerate(tools)]
        self._rules.append(f"call: {' | '.join(names)}")

    def composed(self, start: str) -> str:
        """The source of a constraint of the kind "composed"; `start` is its first rule."""
        rules = "\n".join([start, *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": rules}, *self.parts]})

    def _function(self, tool: Tool, rule: str) -> str:
        if not _NAME.fullmatch(tool.name) or not all(_NAME.fullmatch(p.name) for p in tool.arguments):
            raise RequestError(f"tool {tool.name!r:.80}: names of tools and parameters can't hold '>' or a line break")
        self._tool, self._prefix = tool, rule
        self._done: dict[tuple[str, ...], str] = {}
        begin = json.dumps(f"\n<function={tool.name}>\n")
        following, may_end = tool.following([])
        ways = [f"{json.dumps(_opening(name))} {self._value(name)}" for name in following]
        ways += [f'"</function>\\n" {self._close}'] if may_end else []
        self._rules.append(f"{rule}: {begin} ({' | '.join(ways)})")
        return rule

    def _value(self, name: str) -> str:
        """The rule for the value of a parameter and all that may come after it."""
        if (name,) in self._done:
            return self._done[name,]
        rule = f"{self._prefix}v{len(self._done)}"
        self._done[name,] = rule
        parameter = self._tool.argument(name)
        following, may_end = self._tool.following([name])
        ways = []
        for number, way in enumerate(_ways(parameter)):
            if isinstance(way, str):
                for target in following:
                    lexeme = self._lexeme(f"{rule}w{number}n{following.index(target)}", way, _opening(target))
                    ways.append(f"{lexeme} {self._value(target)}")
                if may_end:
                    lexeme = self._lexeme(f"{rule}w{number}e", way, "</function>\n")
                    ways.append(f"{lexeme} ({self._close}{f' | {rule}' if way == _ANY else ''})")
            else:
                part = f"{rule}w{number}"
                self.parts.append({"name": part, "json_schema": self._honoured(way, parameter)})
                after = [f"{json.dumps(_opening(target))} {self._value(target)}" for target in following]
                after += [f'"</function>\\n" {self._close}'] if may_end else []
                ways.append(f'@{part} "\\n</parameter>\\n" ({" | ".join(after)})')
        self._rules.append(f"{rule}: {' | '.join(ways)}")
        return rule

    def _lexeme(self, name: str, text: str, then: str) -> str:
        """A terminal: a string's text, as short as may be, the closing tag, and what comes `then`."""
        ending = escaped_expression(_quoted(f"\n</parameter>\n{then}"))
        self._rules.append(f"{name}[lazy]: /({text}){ending}/")
        return name

    def _honoured(self, schema: Mapping[str, Any], parameter: Parameter) -> dict[str, Any]:
        """The schema of a JSON value, or no more than its types where it can't be honoured and needn't be."""
        whole = {**parameter.shared, **schema}
        try:
            check_constraint(Constraint("json_schema", json.dumps(whole)))
        except RequestError as error:
            if self._tool.strict:
                raise RequestError(f"tool {self._tool.name}, parameter {parameter.name}: {error}") from None
            whole = {"type": sorted(schema_types(schema, parameter.shared) - {"string"})}
        return with_options(dict(whole))


def _opening(name: str) -> str:
    return f"<parameter={name}>\n"


def _ways(parameter: Parameter) -> Iterator[str | Mapping[str, Any]]:
    """How a value may be written: expressions for the text of strings, schemas for JSON of the other types."""
    for schema in _branches(parameter.schema, parameter.shared, 8):
        types = schema_types(schema, parameter.shared)
        if "string" in types:
            yield from _expressions(schema)
        others = sorted(types - {"string"} - ({"integer"} if "number" in types else set()))
        if others:
            values = schema.get("enum")
            chosen = [v for v in values if not isinstance(v, str)] if isinstance(values, list) else None
            yield {**schema, "type": others, **({"enum": chosen} if chosen else {})}


def _branches(schema: Mapping[str, Any], shared: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a schema that a string is one of; others stay together."""
    schema = resolved(schema, shared) if "string" in schema_types(schema, shared) else schema
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if "string" in schema_types(schema, shared) and isinstance(alternatives, list) and alternatives and depth:
        for branch in alternatives:
            yield from _branches(branch if isinstance(branch, Mapping) else {}, shared, depth - 1)
    else:
        yield schema


def _expressions(schema: Mapping[str, Any]) -> Iterator[str]:
    """Regular expressions for the text of a string."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        yield "|".join(_quoted(value) for value in values if isinstance(value, str))
        return
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and _is_expression(pattern):
        start = pattern.removeprefix("^") if pattern.startswith("^") else f"{_ANY}({pattern})"
        yield f"({start[:-1]})" if pattern.endswith("$") and not pattern.endswith("\\$") else f"({start}){_ANY}"
    elif isinstance(low, int) and (low > 0 or isinstance(high, int)):
        yield f"(?s:.{{{low},{high if isinstance(high, int) else ''}}})"
    else:
        yield _ANY


def _is_expression(pattern: str) -> bool:
    try:
        check_constraint(Constraint("regex", pattern))
    except RequestError:
        return False
    return True


def _quoted(text: str) -> str:
    """A regular expression that matches `text` alone."""
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$/-&~#" else c for c in text)
