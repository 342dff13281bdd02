r"""Grammars over the call syntax: answers that are valid calls, their arguments following the schemas.

While a required parameter is missing, a closing tag ends a string: a model that writes one there means to end the call,
and is led to what it lacks. Where the call may end, a string's text may hold anything but what ends it: the closing tag
followed by a parameter that may come next, or by the end of the function and the token `</tool_call>`. `call_parser`
takes the same for the end. For a function f whose parameter a may be followed by b, or by nothing:

    f: "\n<function=f>\n" ("<parameter=a>\n" va)
    va: text aa
    aa: "<parameter=b>\n" vb | "</function>\n" (end | more aa) | further aa
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core import Constraint
from ..errors import RequestError
from .answer import Marks
from .call_schema import Parameter, Tool, further_schemas, resolved, schema_types
from .call_text import ANY, expression, literal, text_bounds
from .grammar_check import check_constraint, relaxed_schema
from .grammar_source import escaped_expression, with_options

_CLOSE = "\n</parameter>\n"
_END = "</function>\n"
_NAME = re.compile(r"[^>\n]+")


class CallGrammar:
    """The rule `call` for calls of some tools, which begins after `<tool_call>`; `parts` are grammars it refers to."""

    def __init__(self, tools: Sequence[Tool], marks: Marks) -> None:
        """Raises RequestError for a strict tool whose schema can't be honoured."""
        self.parts: list[dict[str, Any]] = []
        self._end = f"<[{marks.end_call}]>"
        self._rules = [
            f"text[lazy]: /{ANY}{expression(_CLOSE)}/",
            f"FURTHER: /{ANY}{expression(_CLOSE)}/ & ~/<{ANY}/",
            "further[lazy]: FURTHER",
            f"MORE: /{ANY}{expression(_CLOSE)}/ & ~/{expression(_CLOSE[1:])}{ANY}/",
            "more[lazy]: MORE",
        ]
        names = [self._function(tool, f"f{i}") for i, tool in enumerate(tools)]
        self._rules.append(f"call: {' | '.join(names)}")

    def composed(self, start: str) -> str:
        """The source of a constraint of the kind "composed"; `start` is its first rule."""
        rules = "\n".join([start, *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": rules}, *self.parts]})

    def _function(self, tool: Tool, rule: str) -> str:
        if not _NAME.fullmatch(tool.name) or not all(_NAME.fullmatch(p.name) for p in tool.arguments):
            raise RequestError(f"tool {tool.name!r:.80}: names of tools and parameters can't hold '>' or a line break")
        if tool.strict:
            _check_strict(tool)
        numbers = {parameter.name: i for i, parameter in enumerate(tool.arguments)}

        def after(given: list[str]) -> tuple[list[str], bool]:
            names, may_end = tool.following(given)
            return [f"{literal(_opening(name))} {rule}v{numbers[name]}" for name in names], may_end

        ways, may_end = after([])
        ways += [f"{literal(_END)} {self._end}"] if may_end else []
        begin = literal(f"\n<function={tool.name}>\n")
        self._rules.append(f"{rule}: {begin} ({' | '.join(ways)})")
        for parameter, number in zip(tool.arguments, numbers.values(), strict=True):
            ways, may_end = after([parameter.name])
            self._value(tool, parameter, f"{rule}v{number}", f"{rule}a{number}", f"{rule}t{number}")
            ending = [f"{literal(_END)} {self._end}"] if may_end else []
            self._rules.append(f"{rule}a{number}: {' | '.join([*ways, *ending])}")
            if may_end:
                ways += [f"{literal(_END)} ({self._end} | more {rule}t{number})", f"further {rule}t{number}"]
            self._rules.append(f"{rule}t{number}: {' | '.join(ways)}")
        return rule

    def _value(self, tool: Tool, parameter: Parameter, rule: str, after: str, after_text: str) -> None:
        """The rule for a value, its closing tag, and all that may come after it."""
        ways = []
        for number, way in enumerate(_ways(parameter)):
            name = f"{rule}w{number}"
            if isinstance(way, Mapping):
                self.parts.append({"name": name, "json_schema": _honoured(way, tool, parameter)})
                ways.append(f"@{name} {literal(_CLOSE)} {after}")
            elif bounds := _honoured_text(way, tool, parameter):
                terms = " & ".join(f"/{escaped_expression(bound)}/" for bound in bounds)
                self._rules += [f"{name.upper()}: {terms}", f"{name.upper()}C: {name.upper()} /{expression(_CLOSE)}/"]
                self._rules.append(f"{name}[lazy]: {name.upper()}C")
                ways.append(f"{name} {after}")
            else:
                ways.append(f"text {after_text}")
        self._rules.append(f"{rule}: {' | '.join(ways)}")


def _opening(name: str) -> str:
    return f"<parameter={name}>\n"


_WHOLE = ("anyOf", "oneOf", "allOf", "not", "if", "minProperties", "patternProperties", "dependentRequired")


def _check_strict(tool: Tool) -> None:
    """Raise RequestError for what no rule can hold arguments to: the call as a whole, schemas that are missing."""
    if key := next((key for key in _WHOLE if key in tool.parameters), None):
        raise RequestError(f"tool {tool.name}: {key} beside its properties can't be honoured for a strict tool")
    for parameter in tool.arguments:
        if reference := _lost(parameter.schema, parameter.shared, 8):
            raise RequestError(f"tool {tool.name}, parameter {parameter.name}: $ref {reference!r:.80} leads nowhere")


def _lost(schema: Mapping[str, Any], shared: Mapping[str, Any], depth: int) -> str:
    """A reference that leads nowhere, among those that say what a value may be."""
    found = resolved(schema, shared)
    if "$ref" in schema and not found:
        return str(schema["$ref"])
    for key in ("anyOf", "oneOf", "allOf"):
        branches = found.get(key)
        for branch in branches if isinstance(branches, list) and depth else ():
            if isinstance(branch, Mapping) and (lost := _lost(branch, shared, depth - 1)):
                return lost
    return ""


def _honoured(schema: Mapping[str, Any], tool: Tool, parameter: Parameter) -> dict[str, Any]:
    """The schema of a JSON value; where it can't be honoured and needn't be, what can be of it."""
    whole = {**parameter.shared, **schema}
    try:
        check_constraint(Constraint("json_schema", json.dumps(whole)))
    except RequestError as error:
        if tool.strict:
            raise RequestError(f"tool {tool.name}, parameter {parameter.name}: {error}") from None
        types = {"type": sorted(schema_types(schema, parameter.shared) - {"string"})}
        return with_options(relaxed_schema(whole) or types)
    return with_options(whole)


def _honoured_text(bounds: list[str], tool: Tool, parameter: Parameter) -> list[str]:
    """The expressions that a string's text must match, or none where they can't be honoured and needn't be."""
    try:
        if bounds:
            terms = " & ".join(f"/{escaped_expression(bound)}/" for bound in bounds)
            check_constraint(Constraint("grammar", f"start: TEXT\nTEXT: {terms}"))
    except RequestError as error:
        if tool.strict:
            said = str(error).replace("the grammar", "the bounds of its text")
            raise RequestError(f"tool {tool.name}, parameter {parameter.name}: {said}") from None
        return []
    return bounds


def _ways(parameter: Parameter) -> Iterator[list[str] | Mapping[str, Any]]:
    """How a value may be written: lists of what a string's text must match, schemas of other types."""
    for schema in _branches(parameter.schema, parameter.shared, 8):
        types = schema_types(schema, parameter.shared)
        if "string" in types:
            parts = [schema, *(resolved(part, parameter.shared) for part in further_schemas(schema))]
            yield [bound for part in parts for bound in text_bounds(part)]
        others = sorted(types - {"string"} - ({"integer"} if "number" in types else set()))
        if others:
            values = schema.get("enum")
            chosen = [v for v in values if not isinstance(v, str)] if isinstance(values, list) else None
            yield {**schema, "type": others, **({"enum": chosen} if chosen else {})}


def _branches(schema: Mapping[str, Any], shared: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a schema that a string is one of; others stay together."""
    if "string" not in schema_types(schema, shared):
        yield schema
        return
    schema = resolved(schema, shared)
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(alternatives, list) and alternatives and depth:
        for branch in alternatives:
            yield from _branches(branch if isinstance(branch, Mapping) else {}, shared, depth - 1)
    else:
        yield schema
