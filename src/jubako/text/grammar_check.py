"""Whether a constraint can be honoured, found out in a process that may be killed; needs no vocabulary.

For a schema that can't the error names the keyword and where it stands: the schema is tried again in parts.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from ..core import Constraint
from ..errors import RequestError
from .grammar_source import grammar_source
from .worker import WorkerProcess

_WORKER = Path(__file__).with_name("grammar_worker.py")
_SECONDS = 2  # of computing that a grammar may take to compile
_PATIENCE = 10.0  # seconds to wait for that on a busy machine
_MEMORY = 2 << 30  # bytes of address space the process may hold
_KEPT = 256  # grammars of which it is known
_SEARCH = 2.0  # seconds spent on finding the part of a schema that is at fault
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/')  # strings and expressions in a grammar
_TOKEN = re.compile(r"<\[")


class GrammarChecker:
    """Owns the process, started for the first check. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._worker: WorkerProcess | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()  # by digest, what is wrong

    def check(self, constraint: Constraint) -> None:
        """Raises RequestError that names the fault: a keyword and its path, a beginning that does not fit."""
        if constraint.kind == "grammar" and _TOKEN.search(_LITERAL.sub("", constraint.source)):
            raise RequestError("the grammar names tokens by id; it may describe text only")
        grammar = grammar_source(constraint)
        key = hashlib.sha256(grammar.encode(errors="replace") + b"\0" + constraint.prefix).digest()
        fault = self._known.get(key)
        if fault is None:
            fault = self._fault(constraint, grammar)
            with self._lock:
                self._known[key] = fault
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        if fault:
            raise RequestError(fault)

    def _fault(self, constraint: Constraint, grammar: str) -> str:
        """What is wrong, "" if nothing is."""
        error, read = self.trial(grammar, constraint.prefix)
        if error:
            where = self._located(constraint, error) if constraint.kind == "json_schema" else f"the {constraint.kind}"
            return f"{where} can't be honoured: {_short(error)}"
        if read < len(constraint.prefix):
            given = constraint.prefix[:read].decode("utf-8", "replace")[-40:]
            return f"the beginning of the answer does not fit the {constraint.kind}: it goes wrong after {given!r}"
        return ""

    def trial(self, grammar: str, prefix: bytes = b"") -> tuple[str, int]:
        """(why it can't be compiled, or "", and how many bytes of the prefix fit)."""
        request = json.dumps({"grammar": grammar, "prefix": prefix.hex()}).encode()
        with self._lock:
            if not (self._worker and self._worker.alive()):
                self._worker = WorkerProcess(_WORKER, json.dumps({"memory": _MEMORY, "seconds": _SECONDS}).encode())
            try:
                answer = self._worker.ask(request, _PATIENCE)
            except (OSError, ValueError):
                return f"it is too complex, compiling takes more than {_SECONDS} s or {_MEMORY >> 30} GiB", 0
        return answer["error"], answer["read"]

    def close(self) -> None:
        """End the process; the next check starts a new one."""
        with self._lock:
            if self._worker:
                self._worker.close()

    def _located(self, constraint: Constraint, error: str) -> str:
        """The keyword at fault and the path of the schema it stands in, for a message."""
        root = json.loads(constraint.source)
        if not isinstance(root, dict) or "too complex" in error:
            return "the schema"
        shared = {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
        deadline = time.monotonic() + _SEARCH

        def fails(schema: Mapping[str, Any]) -> str:
            if time.monotonic() > deadline:
                return ""
            source = json.dumps({**shared, **schema})
            return self.trial(grammar_source(Constraint("json_schema", source)))[0]

        schema, path = root, "#"
        while found := next(((k, s) for k, s in _parts(schema) if _own_fault(fails(s))), None):
            path, schema = f"{path}/{found[0]}", found[1]
        named = [k for k in schema if f'"{k}"' in error.partition("Unimplemented keys: ")[2]]
        keys = sorted(schema, key="type".__eq__)  # the type last, without it nearly anything can be honoured
        named = named or [k for k in keys if not fails({key: value for key, value in schema.items() if key != k})]
        return f"the schema's {json.dumps(named[0])} at {path}" if named else f"the schema at {path}"


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


def _short(error: str) -> str:
    """The telling line of a message from the compiler."""
    if error.startswith("NoExtension"):
        return "nothing satisfies it"
    if error.startswith("panic"):
        return "it is too large"
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<")]
    told = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "no reason given")
    return told.removeprefix("error: ")[:300]


_CHECKER = GrammarChecker()


def check_constraint(constraint: Constraint) -> None:
    """Raises RequestError where a constraint can't be honoured. Takes milliseconds, at most some seconds."""
    _CHECKER.check(constraint)
