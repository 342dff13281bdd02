"""The shipped model at temperature 1.0 under constraints: every answer that ends by itself is valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from schemas import BOOKING, SCHEMAS, WEATHER

from jubako.core import Constraint
from jubako.engine.model import Model
from jubako.text.call_schema import Tool
from jubako.text.chat import ChatPreparer, Conversation, Prepared, Thinking
from jubako.text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart

TOOLS = (Tool("get_weather", "Weather of a city", WEATHER), Tool("book", "Book a journey", BOOKING))
CHECKS = {tool.name: jsonschema_rs.validator_for(tool.parameters) for tool in TOOLS}
USER = {"role": "user", "content": "Anna Moreau is 30 years old and lives in Paris. Fill the form."}
THINKING = (Thinking(False), Thinking(True, budget=12))


@pytest.fixture(scope="module")
def preparer(small_model: Model) -> ChatPreparer:
    assert small_model.tokenizer and small_model.template
    return ChatPreparer(small_model.tokenizer, small_model.template)


def answered(model: Model, prepared: Prepared, seed: int, most: int = 700, **options: Any) -> tuple[list[Piece], str]:
    """The pieces of an answer at temperature 1, and why it ended."""
    options = {"temperature": 1.0, "seed": seed, **options}
    generation = model.generate(
        prepared.prompt,
        max_tokens=most,
        stop_ids=prepared.stop_ids,
        constraint=prepared.constraint,
        thinking=prepared.thinking,
        logit_bias=dict(prepared.logit_bias),
        **options,
    )
    assert model.tokenizer
    parser = prepared.parser(model.tokenizer)
    pieces = [piece for token in generation for piece in parser.push(token)]
    return pieces + parser.finish(generation.stats.finish_reason), generation.stats.finish_reason


def content(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ContentText))


def calls(pieces: list[Piece]) -> list[tuple[str, Any]]:
    """Names and arguments of the complete calls."""
    names = {p.index: p.name for p in pieces if isinstance(p, ToolCallStart)}
    texts = {i: "".join(p.text for p in pieces if isinstance(p, ToolCallArguments) and p.index == i) for i in names}
    return [(names[p.index], json.loads(texts[p.index])) for p in pieces if isinstance(p, ToolCallEnd)]


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_a_hundred_answers_of_a_hundred_follow_twenty_schemas(
    small_model: Model, preparer: ChatPreparer, number: int
) -> None:
    schema = SCHEMAS[number]
    check = jsonschema_rs.validator_for(schema)
    form = Constraint("json_schema", json.dumps(schema))
    for seed in range(5):
        prepared = preparer.prepare(Conversation([USER], form=form, thinking=THINKING[seed % 2]))
        pieces, reason = answered(small_model, prepared, 100 * number + seed, drafts=None if seed % 2 else 0)
        assert reason == "stop"
        assert check.is_valid(json.loads(content(pieces))), content(pieces)
        assert prepared.thinking_open == any(isinstance(piece, ThinkingText) for piece in pieces)


@pytest.mark.parametrize("choice", ["required", "named:book"])
@pytest.mark.parametrize("thinking", THINKING, ids=["quiet", "thinking"])
def test_forced_calls_are_valid(small_model: Model, preparer: ChatPreparer, choice: str, thinking: Thinking) -> None:
    prepared = preparer.prepare(Conversation([USER], TOOLS, choice, thinking=thinking, parallel=False))
    for seed in range(3):
        pieces, reason = answered(small_model, prepared, seed)
        assert reason == "stop"
        [(name, arguments)] = calls(pieces)
        assert CHECKS[name].is_valid(arguments), arguments
        assert name == "book" or choice == "required"
        assert content(pieces) == ""


def test_a_strict_tool_is_held_to_its_schema_once_a_call_begins(small_model: Model, preparer: ChatPreparer) -> None:
    strict = (Tool("get_weather", "Weather of a city", WEATHER, strict=True),)
    messages = [{"role": "user", "content": "What's the weather in Paris?"}]
    prepared = preparer.prepare(Conversation(messages, strict, thinking=Thinking(False)))
    pieces, reason = answered(small_model, prepared, 0, temperature=0.0)
    assert (calls(pieces), reason) == ([("get_weather", {"city": "Paris"})], "stop")


def test_a_form_and_tools_together_give_one_or_the_other(small_model: Model, preparer: ChatPreparer) -> None:
    form = Constraint("json_schema", json.dumps(SCHEMAS[0]))
    prepared = preparer.prepare(Conversation([USER], TOOLS, form=form, thinking=Thinking(False)))
    check = jsonschema_rs.validator_for(SCHEMAS[0])
    for seed in range(3):
        pieces, _ = answered(small_model, prepared, seed)
        made = calls(pieces)
        assert made or check.is_valid(json.loads(content(pieces)))
        assert all(CHECKS[name].is_valid(arguments) for name, arguments in made)


@pytest.mark.parametrize("begun", ["{", '{"name": "An', '{"name": "Anna", "age": 3', '{"name": "Anna", "age": 30}'])
def test_a_given_beginning_is_continued_to_a_valid_whole(
    small_model: Model, preparer: ChatPreparer, begun: str
) -> None:
    form = Constraint("json_schema", json.dumps(SCHEMAS[0]))
    messages = [USER, {"role": "assistant", "content": begun}]
    prepared = preparer.prepare(Conversation(messages, form=form, continue_last=True))
    session = small_model.session()
    for _ in range(2):  # the second time the prompt is known
        pieces, reason = answered(small_model, prepared, 1, session=session)
        assert reason == "stop"
        assert jsonschema_rs.validator_for(SCHEMAS[0]).is_valid(json.loads(begun + content(pieces)))


def test_what_the_token_limit_cuts_is_length_and_no_call(small_model: Model, preparer: ChatPreparer) -> None:
    prepared = preparer.prepare(Conversation([USER], TOOLS, "named:book", thinking=Thinking(False)))
    whole, _ = answered(small_model, prepared, 3)
    assert len(calls(whole)) == 1
    for most in (1, 3, 10, 25):
        pieces, reason = answered(small_model, prepared, 3, most=most)
        assert (reason, calls(pieces), content(pieces)) == ("length", [], "")


def test_greedy_json_is_the_same_with_drafts_and_without(small_model: Model, preparer: ChatPreparer) -> None:
    form = Constraint("json_schema", json.dumps(BOOKING))
    prepared = preparer.prepare(Conversation([USER], form=form, thinking=Thinking(False)))
    texts = {
        content(answered(small_model, prepared, 0, temperature=0.0, drafts=n, fixed_drafts=True)[0]) for n in (0, 1, 3)
    }
    assert len(texts) == 1


def test_a_call_that_the_model_would_end_too_early_is_led_to_what_it_lacks(
    small_model: Model, preparer: ChatPreparer
) -> None:
    properties = {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2, "maximum": 3}}
    tool = Tool("get_weather", "Weather", {"type": "object", "properties": properties, "required": ["city", "days"]})
    messages = [{"role": "user", "content": "What's the weather in Paris?"}]
    prepared = preparer.prepare(Conversation(messages, (tool,), "required", thinking=Thinking(False)))
    for temperature in (0.0, 1.0):
        pieces, _ = answered(small_model, prepared, 4, temperature=temperature)
        [(_, arguments)] = calls(pieces)
        assert arguments in ({"city": "Paris", "days": 2}, {"city": "Paris", "days": 3})
