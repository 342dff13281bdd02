"""The mask over calls and the reading of calls mean the same by a call."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import small_metadata

from jubako.errors import RequestError
from jubako.text.answer import AnswerParser, Marks
from jubako.text.answer_form import constraint_of
from jubako.text.call_schema import Tool
from jubako.text.grammar import GrammarRule, grammar_rule
from jubako.text.pieces import ToolCallArguments
from jubako.text.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["r", "w", 7]},
        "count": {"type": "integer", "maximum": 99},
        "text": {"type": "string"},
        "tag": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]},
        "rest": {"type": "array", "items": {"type": "string", "maxLength": 3}},
    },
    "required": ["path", "count"],
    "additionalProperties": False,
}
TOOL = Tool("write", "", SCHEMA)
VALID = jsonschema_rs.validator_for(SCHEMA)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(small_metadata())


@cache
def fresh_rule() -> GrammarRule:
    marks = Marks.of(tokenizer())
    form = constraint_of(None, (TOOL,), "required", parallel=False, marks=marks, thinking_open=False)
    assert form.constraint
    return grammar_rule(form.constraint, tokenizer(), tokenizer().vocab_size, tokenizer().eos_ids)


def written(values: dict[str, str]) -> list[int]:
    """The tokens of a call with these values, their text as it stands."""
    marks = Marks.of(tokenizer())
    assert marks.call is not None
    assert marks.end_call is not None
    inner = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return [marks.call, *tokenizer().encode(f"\n<function=write>\n{inner}</function>\n"), marks.end_call]


def allowed(tokens: list[int], rule: GrammarRule | None = None) -> bool:
    """Whether the mask lets all of it be written, byte by byte where it forces another cutting, and then ends."""
    rule = (rule or fresh_rule()).copy()
    for token in tokens:
        pieces = [token]
        if tokenizer().is_normal(token):
            pieces = [tokenizer().byte_id(byte) for byte in tokenizer().token_bytes(token)]
        if rule._matcher.try_consume_tokens(pieces) < len(pieces):
            return False
    return rule.finished


def read(tokens: list[int]) -> dict[str, Any] | None:
    """The arguments of the one complete call, if there is one."""
    parser = AnswerParser(tokenizer(), thinking_open=False, tools=(TOOL,), ordered=True, single=True)
    pieces = [piece for token in tokens for piece in parser.push(token)]
    text = "".join(piece.text for piece in pieces if isinstance(piece, ToolCallArguments))
    return json.loads(text) if parser.calls else None


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"path": "/a", "count": "5"}, True),
        ({"path": "", "mode": "w", "count": "5", "text": "", "tag": "ab", "rest": '["a"]'}, True),
        ({"path": "/a", "mode": "7", "count": "5", "tag": "null"}, True),
        ({"path": "/a", "count": "100"}, False),
        ({"path": "/a", "mode": "x", "count": "5"}, False),
        ({"path": "/a", "count": "5", "tag": "A"}, False),
        ({"path": "/a", "count": "5", "rest": '["abcd"]'}, False),
        ({"count": "5", "path": "/a"}, False),
        ({"path": "/a"}, False),
        ({"path": "/a", "count": "5", "other": "1"}, False),
        ({"path": "/a", "count": "five"}, False),
    ],
)
def test_the_mask_lets_through_what_is_valid(values: dict[str, str], fits: bool) -> None:
    assert allowed(written(values)) is fits


def test_a_string_may_quote_the_syntax_of_calls() -> None:
    text = "see\n</parameter>\n</function>\n</tool_call>\nand\n</parameter>\nso on </parameter><parameter=tag>\n"
    tokens = written({"path": "/a", "count": "5", "text": text})
    assert allowed(tokens)
    assert read(tokens) == {"path": "/a", "count": 5, "text": text}


fragment = st.sampled_from(
    [
        "</parameter>",
        "\n",
        "<parameter=tag>",
        "<parameter=rest>",
        "<parameter=count>",
        "</function>",
        "a",
        "5",
        "é",
        ">",
    ]
)
texts = st.lists(fragment | st.text(max_size=3).filter(lambda t: t.isprintable()), max_size=7).map("".join)


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {"path": texts},
        optional={
            "mode": st.sampled_from(["r", "w", "7", "x"]),
            "count": st.integers(-5, 120).map(str) | texts,
            "text": texts,
            "tag": st.sampled_from(["abc", "null", "A1"]) | texts,
            "rest": st.lists(st.text(max_size=4), max_size=2).map(json.dumps),
        },
    )
)
def test_what_the_mask_lets_through_is_read_as_a_valid_call(values: dict[str, str]) -> None:
    ordered = {name: values[name] for name in SCHEMA["properties"] if name in values}
    tokens = written(ordered)
    if allowed(tokens):
        arguments = read(tokens)
        assert arguments is not None
        assert VALID.is_valid(arguments)


def rule_of(schema: dict[str, Any], strict: bool = False) -> GrammarRule:
    """The mask over a call with one parameter, `path`."""
    tool = Tool("write", "", {"type": "object", "properties": {"path": schema}, "required": ["path"]}, strict)
    form = constraint_of(None, (tool,), "required", parallel=False, marks=Marks.of(tokenizer()), thinking_open=False)
    assert form.constraint
    return grammar_rule(form.constraint, tokenizer(), tokenizer().vocab_size, tokenizer().eos_ids)


@pytest.mark.parametrize(
    ("schema", "fitting", "unfitting"),
    [
        ({"pattern": "^(a|b)+$|^c$", "maxLength": 3}, ["ab", "c"], ["abab", "cc", ""]),
        ({"pattern": "\\d{2}/\\d", "minLength": 6}, ["ab12/3", "12/3xyz"], ["12/3", "xx", "ab١٢/٣"]),
        ({"pattern": "[|]x|^\\$"}, ["a|x", "$5"], ["x", "5$"]),
        ({"enum": ["a/b", "c\nd", "x\\y", "(z)*"]}, ["a/b", "c\nd", "x\\y", "(z)*"], ["z", "a/"]),
        ({"maxLength": 0}, [""], ["x"]),
        ({"minLength": 2, "maxLength": 3}, ["🍱é", "a\nb"], ["é", "abcd"]),
        ({"allOf": [{"pattern": "^a"}, {"maxLength": 2}]}, ["ab", "a"], ["abc", "b"]),
    ],
)
def test_bounds_of_strings_hold_for_their_text(
    schema: dict[str, Any], fitting: list[str], unfitting: list[str]
) -> None:
    rule = rule_of({"type": "string", **schema})
    assert [text for text in [*fitting, *unfitting] if allowed(written({"path": text}), rule)] == fitting


@pytest.mark.parametrize("bounds", [{"pattern": "(?=x)y"}, {"minLength": 5, "maxLength": 3}])
def test_bounds_that_cant_be_honoured_matter_for_strict_tools_only(bounds: dict[str, Any]) -> None:
    assert allowed(written({"path": "anything"}), rule_of({"type": "string", **bounds}))
    with pytest.raises(RequestError, match="tool write, parameter path: the bounds of its text"):
        rule_of({"type": "string", **bounds}, strict=True)


def test_a_value_follows_all_of_its_schemas() -> None:
    """A reference in an allOf of one is how pydantic describes a field of a type of its own."""
    defs = {"Box": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, "E": {"enum": ["x", "y"]}}
    parts = {
        "box": {"allOf": [{"$ref": "#/$defs/Box"}], "description": "a box"},
        "e": {"allOf": [{"$ref": "#/$defs/E"}]},
    }
    tool = Tool("write", "", {"$defs": defs, "type": "object", "properties": parts, "required": ["box"]}, True)
    assert [sorted(p.types) for p in tool.arguments] == [["object"], ["string"]]
    form = constraint_of(None, (tool,), "required", parallel=False, marks=Marks.of(tokenizer()), thinking_open=False)
    assert form.constraint
    rule = grammar_rule(form.constraint, tokenizer(), tokenizer().vocab_size, tokenizer().eos_ids)
    assert allowed(written({"box": '{"a": 1}', "e": "y"}), rule)
    assert not allowed(written({"box": "a box"}), rule)
    assert not allowed(written({"box": '{"a": 1}', "e": "z"}), rule)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#/$defs/none"}, "parameter path: .* '#/\\$defs/none' leads nowhere"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/definitions/x"}]}, "leads nowhere"),
    ],
)
def test_references_that_lead_nowhere_matter_for_strict_tools_only(schema: dict[str, Any], says: str) -> None:
    assert allowed(written({"path": "anything"}), rule_of(schema))
    with pytest.raises(RequestError, match=says):
        rule_of(schema, strict=True)


def test_a_strict_tool_says_what_it_cant_hold_a_call_to() -> None:
    tool = Tool("f", "", {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]}, True)
    with pytest.raises(RequestError, match="tool f: anyOf"):
        constraint_of(None, (tool,), "required", parallel=False, marks=Marks.of(tokenizer()), thinking_open=False)


def test_what_is_required_but_not_described_is_asked_for() -> None:
    tool = Tool("write", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]})
    assert [(p.name, p.required) for p in tool.arguments] == [("a", False), ("b", True)]


def test_of_a_schema_that_cant_be_honoured_the_rest_is() -> None:
    inner = {"type": "array", "items": {"type": "integer", "not": {"const": 3}}, "uniqueItems": True, "maxItems": 2}
    schema = {"type": "object", "properties": {"l": inner}, "required": ["l"], "if": {}, "additionalProperties": False}
    rule = rule_of(schema)
    assert [
        text
        for text in ('{"l": [1, 1]}', '{"l": [1, 2, 3]}', "{}", '{"l": ["a"]}', '{"l": [3], "x": 1}')
        if allowed(written({"path": text}), rule)
    ] == ['{"l": [1, 1]}']
