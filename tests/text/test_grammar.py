"""Masks: what an answer may say next, and whether a constraint can be honoured at all."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from vocabularies import small_metadata

from jubako.core import Constraint, Request, ThinkingBudget
from jubako.errors import RequestError
from jubako.measure.vocabulary import vocabulary
from jubako.text.grammar_check import GrammarChecker, check_constraint
from jubako.text.rules import TokenRule, allowed_tokens, build_rules
from jubako.text.tokenizer import Tokenizer

PADDED = 350  # logits, more than the vocabulary has tokens


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(small_metadata())


def rules_of(constraint: Constraint | None = None, thinking: ThinkingBudget | None = None) -> list[TokenRule]:
    stop_ids = frozenset(tokenizer().eos_ids)
    request = Request("", (0,), stop_ids=stop_ids, constraint=constraint, thinking=thinking)
    return build_rules(request, tokenizer(), PADDED)


def schema(**keywords: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(keywords))


def follow(rules: list[TokenRule], text: str, marks: bool = False) -> bool:
    """Whether the rules let this text be written; it is written as far as they do."""
    for token in tokenizer().encode(text, special=marks):
        mask = allowed_tokens(rules)
        if mask is not None and not mask[token]:
            return False
        for rule in rules:
            rule.accept(token)
    return True


def may_end(rules: list[TokenRule]) -> bool:
    mask = allowed_tokens(rules)
    return mask is None or bool(mask[list(tokenizer().eos_ids)].all())


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (schema(type="object", properties={"a": {"type": "integer"}}, required=["a"]), '{"a": 12}'),
        (schema(type="string", enum=["é", "hello"]), '"hello"'),
        (Constraint("json_object"), '{"x":[1,{"y":null}],\n  "z": "\\u0001\\n"}'),
        (Constraint("regex", "a/[0-9]+\\.b"), "a/42.b"),
        (Constraint("regex", "^héllo$"), "héllo"),
        (Constraint("grammar", 'start: "a" b\nb: "(" b ")" | "x"'), "a((x))"),
    ],
)
def test_the_end_is_allowed_exactly_where_the_answer_may_end(constraint: Constraint, text: str) -> None:
    rules = rules_of(constraint)
    for token in tokenizer().encode(text):
        assert not may_end(rules)
        assert not rules[0].finished
        mask = allowed_tokens(rules)
        assert mask is not None
        assert mask[token]
        rules[0].accept(token)
    assert may_end(rules)
    assert rules[0].finished


def test_what_may_go_on_is_not_finished() -> None:
    [rule] = rules_of(schema(type="integer"))
    assert follow([rule], "12")
    assert may_end([rule])
    assert not rule.finished
    assert follow([rule], "3")


def test_special_tokens_and_padding_are_never_text() -> None:
    [rule] = rules_of(schema(type="string"))
    assert follow([rule], '"<think>')
    mask = rule.allowed()
    assert mask is not None
    assert mask[tokenizer().encode("a")].all()
    assert not mask[list(tokenizer().special_ids)].any()
    assert not mask[tokenizer().vocab_size :].any()
    assert not follow([rule], "<|im_end|>", marks=True)


def test_half_a_character_can_be_written_in_two_tokens() -> None:
    [rule] = rules_of(schema(type="string"))
    parts = tokenizer().encode('"🍱"')
    assert len(parts) > 3
    assert follow([rule], '"🍱"')


def test_a_copy_goes_its_own_way() -> None:
    [rule] = rules_of(schema(type="array", items={"type": "boolean"}))
    assert follow([rule], "[tr")
    other = rule.copy()
    assert follow([other], "ue, fal")
    assert not follow([rule], "al")
    assert follow([rule], "ue]")
    assert rule.finished
    assert not other.finished


def test_what_is_forced_is_what_alone_may_come() -> None:
    keywords = {"properties": {"hello": {"type": "boolean"}}, "required": ["hello"], "additionalProperties": False}
    [rule] = rules_of(schema(type="object", **keywords))
    assert rule.forced() == tokenizer().encode("{")
    assert follow([rule], '{"')
    forced = rule.forced()
    assert forced == tokenizer().encode('hello"')
    for token in forced:
        mask = rule.allowed()
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [token]
        rule.accept(token)
    assert follow([rule], ": true}")
    assert rule.forced() == []


def test_a_token_that_the_mask_bars_is_an_error() -> None:
    [rule] = rules_of(schema(type="boolean"))
    with pytest.raises(RequestError, match="json_schema"):
        rule.accept(tokenizer().encode("x")[0])


@pytest.mark.parametrize("optional", [False, True])
def test_the_mask_begins_after_a_token(optional: bool) -> None:
    close = tokenizer().special_tokens["</think>"]
    [rule] = rules_of(Constraint("json_object", after=(close,), lead="\n\n", optional=optional))
    assert follow([rule], "anything <b> at all")
    assert may_end([rule]) is optional
    rule.accept(close)
    assert not may_end([rule])
    assert not follow([rule.copy()], "{")
    assert follow([rule], "\n\n{}")
    assert rule.finished


@pytest.mark.parametrize("given", ["{", '{"a"', '{"a": [1, 2', '{"a": "\\', '{"name": "é"}'])
def test_a_given_beginning_is_gone_on_from(given: str) -> None:
    rest = {"{": "}", '{"a"': ": 1}", '{"a": [1, 2': "3]}", '{"a": "\\': 'n"}'}.get(given, "")
    rules = rules_of(Constraint("json_object", prefix=given.encode()))
    assert rules[0].finished is (rest == "")
    assert follow(rules, rest)
    assert may_end(rules)


def test_half_a_character_can_be_given() -> None:
    rules = rules_of(Constraint("json_object", prefix='{"🍱'.encode()[:-2]))
    [first, *_] = tokenizer().encode("🍱")[2:] or [0]
    assert rules[0].copy()
    mask = rules[0].allowed()
    assert mask is not None
    assert mask[first]
    assert not mask[tokenizer().encode("a")].any()


def test_a_beginning_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RequestError, match=r"goes wrong after '\{\"a\": tr'"):
        check_constraint(Constraint("json_object", prefix=b'{"a": trx'))
    with pytest.raises(RequestError, match="goes wrong after"):
        rules_of(Constraint("json_object", prefix=b'{"a": trx'))


S = {"type": "string"}


@pytest.mark.parametrize(
    ("keywords", "fault"),
    [
        ({"properties": {"a": {"items": {"not": S}}}}, '"not" at #/properties/a/items'),
        ({"anyOf": [S, {"type": "array", "uniqueItems": True}]}, '"uniqueItems" at #/anyOf/1'),
        ({"$defs": {"x": {"pattern": "(?=a)b"}}, "properties": {"q": {"$ref": "#/$defs/x"}}}, '"pattern" at #/$defs/x'),
        ({"$ref": "#/definitions/none"}, '"$ref" at #'),
        ({"type": "integer", "minimum": 5, "maximum": 1}, '"minimum" at #'),
        ({"properties": {"u": {"type": "string", "format": "banana"}}}, '"format" at #/properties/u'),
        ({"oneOf": [S, {"type": "string", "pattern": "a"}]}, '"oneOf" at #'),
        ({"type": "banana"}, '"type" at #'),
        ({"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"}, "nothing satisfies it"),
        ({"required": ["z"], "properties": {"z": False}, "type": "object"}, '"required" at #'),
        ({"prefixItems": [S, {"contains": S}]}, '"contains" at #/prefixItems/1'),
    ],
)
def test_a_schema_that_cant_be_honoured_is_told_by_keyword_and_path(keywords: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_constraint(schema(**keywords))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", "[]", "must be an object"),
        ("json_schema", '{"enum": ["' + "x" * 2**18 + '"]}', "limit"),
        ("regex", "(", "unclosed group"),
        ("grammar", "start: x", "unknown name"),
        ("grammar", 'start: "a" <[300]>', "names tokens by id"),
        ("grammar", 'start: "a" <tool_call>', "special token"),
        ("sonnet", "", "can be json_schema"),
    ],
)
def test_sources_that_are_wrong_are_explained(kind: str, source: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        check_constraint(Constraint(kind, source))


def test_a_schemas_own_options_for_the_compiler_dont_count() -> None:
    with pytest.raises(RequestError, match='"not" at #'):
        check_constraint(schema(**{"not": S, "x-guidance": {"lenient": True}}))


HOSTILE = [
    {"allOf": [{"type": "string", "pattern": f"a{{{i}}}.*b"} for i in range(2, 40)]},
    {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": S}} for j in range(4)]} for i in range(9)]},
    {"type": "array", "items": json.loads('{"items":' * 90 + "{}" + "}" * 90)},
]


@pytest.mark.parametrize("keywords", HOSTILE, ids=["patterns", "products", "deep"])
def test_hostile_schemas_cost_seconds_at_most_and_the_next_is_fine(keywords: dict[str, Any]) -> None:
    checker = GrammarChecker()
    began = time.monotonic()
    try:
        checker.check(schema(**keywords))
    except RequestError as error:
        assert "honoured" in str(error)
    assert time.monotonic() - began < 25
    checker.check(schema(type="object"))
    checker.close()


def test_a_thinking_budget_forces_the_end() -> None:
    marks = tokenizer().special_tokens
    close = tuple(tokenizer().encode("\n</think>\n\n", special=True))
    rules = rules_of(thinking=ThinkingBudget(3, (marks["</think>"],), close))
    assert follow(rules, "abc")
    assert rules[0].forced() == list(close)
    forced = []
    while (mask := allowed_tokens(rules)) is not None:
        assert mask.sum() == 1
        forced.append(int(mask.argmax()))
        rules[0].accept(forced[-1])
    assert tuple(forced) == close
    assert (allowed_tokens(rules), rules[0].forced()) == (None, [])


def test_thinking_that_ends_in_time_is_left_alone() -> None:
    marks = tokenizer().special_tokens
    [rule] = rules_of(thinking=ThinkingBudget(5, (marks["</think>"],), (marks["</think>"],)))
    assert follow([rule], "ab</think>cdefghijk", marks=True)
    assert rule.allowed() is None


def test_a_budget_and_a_form_together() -> None:
    marks = tokenizer().special_tokens
    close = tuple(tokenizer().encode("\n</think>\n\n", special=True))
    form = Constraint("json_object", after=(marks["</think>"],), lead="\n\n")
    rules = rules_of(form, ThinkingBudget(2, (marks["</think>"],), close))
    assert follow(rules, "ab\n</think>\n\n{}", marks=True)
    assert rules[1].finished


def test_masks_of_the_large_vocabulary_cost_less_than_a_millisecond() -> None:
    count = 248_320
    large = Tokenizer.from_metadata(vocabulary(count))
    form = schema(type="object", properties={"a": S, "l": {"type": "array", "items": {"type": "number"}}})
    request = Request("", (0,), stop_ids=frozenset(large.eos_ids), constraint=form)
    [rule] = build_rules(request, large, count)
    seconds = []
    for token in large.encode('{"a": "' + "it was a cold evening " * 10 + '", "l": [1.5, 22, 3e5]}'):
        began = time.perf_counter()
        mask = rule.allowed()
        seconds.append(time.perf_counter() - began)
        assert mask is not None
        assert mask[token]
        rule.accept(token)
    assert rule.finished
    assert float(np.median(seconds)) < 1e-3
