"""What an answer must look like, all wishes together: a form of the content, calls, thinking before either."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Constraint
from ..errors import RequestError
from .answer import Marks
from .call_grammar import CallGrammar
from .call_schema import Tool
from .grammar_check import check_constraint
from .grammar_source import grammar_part
from .grammar_worker import STAND_INS

_LEAD = "\n\n"  # what models write between their thinking and the answer


@dataclass(frozen=True)
class Form:
    """constraint: for the engine; the other fields as in `AnswerParser`."""

    constraint: Constraint | None = None
    ordered: bool = False
    single: bool = False
    think_calls: bool = True


def constraint_of(
    wanted: Constraint | None,
    tools: Sequence[Tool],
    choice: str,
    *,
    parallel: bool,
    masked: bool = False,
    marks: Marks,
    thinking_open: bool,
    prefix: bytes = b"",
) -> Form:
    """The form of an answer. `tools`: those that may be called. Raises RequestError naming what can't be honoured.

    Calls are masked where they are forced, a tool is strict, or `masked`; else a call is read as it comes.
    """
    after = (marks.end_think,) if thinking_open and marks.end_think is not None else ()
    lead = _LEAD if after else ""
    begun = b"" if after else prefix
    forced = choice == "required" or choice.startswith("named:")
    if wanted is not None:
        check_constraint(Constraint(wanted.kind, wanted.source, prefix=begun))
    masked = bool(tools) and (masked or any(tool.strict for tool in tools))
    if not forced and not masked and not (wanted and tools and not begun):
        constraint = wanted and Constraint(wanted.kind, wanted.source, after, begun, lead)
        return Form(constraint, single=bool(tools) and not parallel, think_calls=not (after and wanted))
    if marks.call is None or marks.end_call is None:
        raise RequestError(
            "tools: this model's vocabulary has no token <tool_call>, so calls can't be held to a schema"
        )
    named = choice.removeprefix("named:") if choice.startswith("named:") else None
    grammar = CallGrammar([tool for tool in tools if named in (None, tool.name)], marks)
    single = not parallel or named is not None
    further = "" if single else f' ("\\n" <[{marks.call}]> call)*'
    if forced or wanted is not None:
        ways = f"<[{marks.call}]> call{further}"
        if wanted is not None and not forced:
            ways = f"(@answer | {ways})"
            grammar.parts.append({**grammar_part(wanted.kind, wanted.source), "name": "answer"})
        start = f"{json.dumps(_LEAD)}{'' if after or not begun else '?'} " if after or begun else ""
        source = grammar.composed(f"start: {start}{ways}")
        _check(source, marks)
        return Form(Constraint("composed", source, after), True, single, not after)
    source = grammar.composed(f"start: call{further}")
    _check(source, marks)
    return Form(Constraint("composed", source, (marks.call,), optional=True), True, single)


def _check(source: str, marks: Marks) -> None:
    """Raise RequestError where all of it together is too much; tokens are named as the trial's vocabulary has them."""
    for mark, stand_in in zip((marks.call, marks.end_call), STAND_INS, strict=True):
        source = source.replace(f"<[{mark}]>", f"<[{stand_in}]>")
    try:
        check_constraint(Constraint("composed", source))
    except RequestError as error:
        raise RequestError(str(error).replace("the composed", "tools: their schemas together")) from None
