"""Whether a constraint can be honoured, found out in a process that may be killed; needs no vocabulary.

For a schema that can't the error names the keyword and where it stands: the schema is tried again in parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from ..core import Constraint
from ..errors import RequestError
from .grammar_source import grammar_source
from .schema_fault import find_fault, relaxed
from .worker import WorkerProcess

_WORKER = Path(__file__).with_name("grammar_worker.py")
_SECONDS = 2  # of computing that a grammar may take to compile
_PATIENCE = 10.0  # seconds to wait for that on a busy machine
_MEMORY = 2 << 30  # bytes of address space the process may hold
_KEPT = 256  # grammars of which it is known
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/')  # strings and expressions in a grammar
_TOKEN = re.compile(r"<\[")


class GrammarChecker:
    """Owns the process, started for the first check. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._worker: WorkerProcess | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()  # by digest, what is wrong
        self._relaxed: OrderedDict[str, dict[str, Any] | None] = OrderedDict()

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

    def relaxed(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """The schema without the keywords that can't be honoured; None where nothing useful is left."""
        key = json.dumps(schema)
        if key not in self._relaxed:
            found = relaxed(schema, self._schema_trial)
            with self._lock:
                self._relaxed[key] = found
                if len(self._relaxed) > _KEPT:
                    self._relaxed.popitem(last=False)
            return found
        return self._relaxed[key]

    def _located(self, constraint: Constraint, error: str) -> str:
        """The keyword at fault and the path of the schema it stands in, for a message."""
        root = json.loads(constraint.source)
        if not isinstance(root, dict) or "too complex" in error:
            return "the schema"
        return str(find_fault(root, error, self._schema_trial))

    def _schema_trial(self, schema: Mapping[str, Any]) -> str:
        return self.trial(grammar_source(Constraint("json_schema", json.dumps(schema))))[0]


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


def relaxed_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema without the keywords that can't be honoured; None where nothing useful is left."""
    return _CHECKER.relaxed(schema)
