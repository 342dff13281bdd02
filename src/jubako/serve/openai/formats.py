"""response_format to a constraint."""

from __future__ import annotations

import json

from ...core import Constraint
from ..problems import Refused
from .chat_request import ResponseFormat


def constraint_of(wanted: ResponseFormat | None) -> Constraint | None:
    """What the answer must look like; None for free text. Raises Refused where a part is missing."""
    match wanted:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return Constraint("json_object")
        case ResponseFormat(type="json_schema"):
            if wanted.json_schema is None or wanted.json_schema.schema_ is None:
                raise _missing("json_schema.schema", "json_schema")
            return Constraint("json_schema", json.dumps(wanted.json_schema.schema_))
        case ResponseFormat(type="regex"):
            if wanted.regex is None:
                raise _missing("regex", "regex")
            return Constraint("regex", wanted.regex)
        case _:
            if wanted.grammar is None:
                raise _missing("grammar", "grammar")
            return Constraint("grammar", wanted.grammar)


def _missing(field: str, kind: str) -> Refused:
    where = f"response_format.{field}"
    return Refused("invalid", f"{where} is missing; a response_format of type {kind} needs it", where)
