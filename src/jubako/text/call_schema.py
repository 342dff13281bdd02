"""Functions that a model may call, as far as reading and masking a call needs to know them.

A call is spelled, after the token `<tool_call>` and before the token `</tool_call>`:

    <function=NAME>
    <parameter=NAME>
    value
    </parameter>
    </function>

Strings stand as they are, everything else as JSON; so a value can't be read without knowing its type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}  # as templates in Python may write them


@dataclass(frozen=True)
class Parameter:
    """One argument: `schema` with the references of its function resolvable in `shared`; `types` it may have."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    shared: Mapping[str, Any]

    @cached_property
    def types(self) -> frozenset[str]:
        return schema_types(self.schema, self.shared)

    def json_text(self, text: str) -> str:
        """The argument as JSON: a string as it stands, other types parsed, what fits none of them as a string."""
        if self.types != {"string"}:
            found = _plain_json(_SPELLINGS.get(text.strip(), text.strip()))
            if found is not None and found[1] & self.types:
                return found[0]
        return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Tool:
    """A function the model may call. parameters: its JSON schema. strict: arguments must follow it to the letter."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    @cached_property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters in the schema's order; then what is required without being described."""
        shared = {key: self.parameters[key] for key in ("$defs", "definitions") if key in self.parameters}
        root = resolved(self.parameters, shared)
        properties, required = root.get("properties"), root.get("required")
        schemas = dict(properties) if isinstance(properties, Mapping) else {}
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        schemas = {**schemas, **{name: {} for name in names if name not in schemas}}
        return tuple(
            Parameter(name, schema if isinstance(schema, Mapping) else {}, name in names, shared)
            for name, schema in schemas.items()
        )

    def argument(self, name: str) -> Parameter:
        """The parameter of that name, one without a type where the schema has none."""
        return next((p for p in self.arguments if p.name == name), Parameter(name, {}, False, {}))

    def following(self, given: Sequence[str]) -> tuple[list[str], bool]:
        """Names that may come next in the schema's order, once `given` are there, and whether the call may end."""
        names = [parameter.name for parameter in self.arguments]
        start = names.index(given[-1]) + 1 if given and given[-1] in names else 0
        found: list[str] = []
        for parameter in self.arguments[start:]:
            found.append(parameter.name)
            if parameter.required:
                return found, False
        return found, True

    def described(self) -> dict[str, Any]:
        """The tool as chat templates list it: the same text, whatever dialect it came in."""
        schema = dict(self.parameters) or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def resolved(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a chain of local references leads to; {} where it leads nowhere."""
    for _ in range(16):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        kind, _, name = reference.removeprefix("#/").partition("/")
        target = shared.get(kind)
        found = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def further_schemas(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What else a value must follow: the schemas of allOf."""
    branches = schema.get("allOf")
    return [branch for branch in branches if isinstance(branch, Mapping)] if isinstance(branches, list) else []


def schema_types(schema: Mapping[str, Any], shared: Mapping[str, Any], depth: int = 8) -> frozenset[str]:
    """The JSON types that values of a schema may have."""
    schema = resolved(schema, shared)
    kind = schema.get("type")
    named = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else list(JSON_TYPES)
    types = {name for name in named if isinstance(name, str)} & JSON_TYPES or set(JSON_TYPES)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        types &= {name for value in values for name in _types_of(value)}
    for branch in further_schemas(schema) if depth else ():
        types &= schema_types(branch, shared, depth - 1)
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches and depth:
            inner = [schema_types(b, shared, depth - 1) for b in branches if isinstance(b, Mapping)]
            types &= frozenset().union(*inner) if inner else types
    return frozenset(types) or JSON_TYPES


def _types_of(value: object) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return frozenset({names.get(type(value), "null")})


def _plain_json(text: str) -> tuple[str, frozenset[str]] | None:
    """The text and its types if it is JSON, else None. Numbers keep their digits."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return text, _types_of(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
