"""Constraints in the words of llguidance: a JSON schema, an expression or a grammar as one grammar text."""

from __future__ import annotations

import json
from typing import Any

from ..core import Constraint
from ..errors import RequestError

KINDS = ("json_schema", "json_object", "regex", "grammar")
_LARGEST = 1 << 18  # characters of a source
# A blank or a line's indentation. Without a bound a model may write blanks until it is stopped.
_BLANKS = r"[ ]?|\r?\n[ \t]{0,24}"


def grammar_source(constraint: Constraint) -> str:
    """The grammar of a constraint, as `LLMatcher` takes it. Raises RequestError for what is no schema at all."""
    if constraint.kind == "composed":
        return constraint.source
    part = grammar_part(constraint.kind, constraint.source)
    if not constraint.lead:
        return json.dumps({"grammars": [part]})
    head = f"start: {json.dumps(constraint.lead)} @answer"
    return json.dumps({"grammars": [{"lark_grammar": head}, {**part, "name": "answer"}]})


def grammar_part(kind: str, source: str) -> dict[str, Any]:
    """The grammar as a member of a list of grammars, to be referred to by a name given to it."""
    if kind not in KINDS:
        raise RequestError(f"the kind of a constraint is {kind!r:.50}; it can be {', '.join(KINDS)}")
    if len(source) > _LARGEST:
        raise RequestError(f"the {kind} has {len(source)} characters; the limit is {_LARGEST}")
    if kind == "grammar":
        return {"lark_grammar": source}
    if kind == "regex":
        return {"lark_grammar": f"start: /{escaped_expression(source)}/"}
    return {"json_schema": json_schema(source) if kind == "json_schema" else with_options({"type": "object"})}


def json_schema(source: str) -> dict[str, Any]:
    """A schema from its JSON text, with the options that every schema is compiled with."""
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the schema is not JSON: {error}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestError(f"the schema is {str(schema)!r:.50}; it must be an object")
    return with_options(schema)


def with_options(schema: dict[str, Any]) -> dict[str, Any]:
    """Strict: what can't be honoured is an error. A schema's own options for the compiler don't count."""
    options = {"whitespace_pattern": _BLANKS, "lenient": False, "coerce_one_of": False}
    return {**schema, "x-guidance": options}


def escaped_expression(expression: str) -> str:
    """A regular expression as it stands between the slashes of a Lark grammar."""
    out, escaped = [], False
    for character in expression:
        plain = {"/": "\\/", "\n": "\\n", "\r": "\\r"}.get(character, character)
        out.append(plain[1:] if escaped and plain != character else plain)
        escaped = character == "\\" and not escaped
    return "".join(out)
