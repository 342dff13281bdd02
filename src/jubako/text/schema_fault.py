"""Which keyword of a schema can't be honoured, and the schema without such keywords: found by trying it in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SEARCH = 2.0  # seconds spent on finding a fault
# What a schema is built of: the fault lies rather in what comes on top of it.
_FRAME = ("allOf", "anyOf", "$ref", "items", "additionalProperties", "required", "properties", "type")

Trial = Callable[[Mapping[str, Any]], str]  # a schema to why it can't be compiled, "" if it can


@dataclass
class Fault:
    """schema: the part of the whole, itself, that is at fault. keyword: what in it; None where it can't be told."""

    path: str
    schema: dict[str, Any]
    keyword: str | None

    def __str__(self) -> str:
        return (
            f"the schema's {json.dumps(self.keyword)} at {self.path}" if self.keyword else f"the schema at {self.path}"
        )


def find_fault(root: dict[str, Any], error: str, trial: Trial) -> Fault:
    """Where the error that `root` gives comes from."""
    shared: dict[str, Any] = {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
    deadline = time.monotonic() + _SEARCH

    def fails(schema: Mapping[str, Any]) -> str:
        return trial({**shared, **schema}) if time.monotonic() < deadline else ""

    schema, path = root, "#"
    while found := next(((key, part) for key, part in _parts(schema) if _own_fault(fails(part))), None):
        path, schema = f"{path}/{found[0]}", found[1]
    named = [key for key in schema if f'"{key}"' in error.partition("Unimplemented keys: ")[2]]
    keys = sorted(schema, key=lambda key: _FRAME.index(key) if key in _FRAME else -1)
    named = named or [key for key in keys if not fails({k: value for k, value in schema.items() if k != key})]
    return Fault(path, schema, named[0] if named else None)


def relaxed(schema: Mapping[str, Any], trial: Trial, most: int = 16) -> dict[str, Any] | None:
    """The schema without the keywords that can't be honoured, at most so many; None where that does not mend it."""
    root: dict[str, Any] = json.loads(json.dumps(schema))
    for _ in range(most):
        error = trial(root)
        if not error:
            return root
        fault = find_fault(root, error, trial)
        if fault.keyword is None:
            return None
        del fault.schema[fault.keyword]
    return None


def _own_fault(error: str) -> bool:
    """Whether a part fails by itself, and not because what it refers to was left out."""
    return bool(error) and not error.startswith("Pointer ")


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas right inside one, with the path to each; definitions first, since others fail with them."""
    for key in ("$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            yield from ((f"{key}/{name}", part) for name, part in schema[key].items() if isinstance(part, dict))
    for key in ("items", "additionalProperties", "additionalItems"):
        if isinstance(schema.get(key), dict):
            yield key, schema[key]
    for key in ("properties", "patternProperties", "anyOf", "oneOf", "allOf", "prefixItems", "items"):
        inner = schema.get(key)
        if isinstance(inner, list):
            yield from ((f"{key}/{i}", part) for i, part in enumerate(inner) if isinstance(part, dict))
        elif isinstance(inner, dict) and key != "items":
            yield from ((f"{key}/{name}", part) for name, part in inner.items() if isinstance(part, dict))
