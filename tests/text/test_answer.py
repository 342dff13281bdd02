"""Reading answers: thinking, content and calls, however the tokens are dealt out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vocabularies import small_metadata

from jubako.text.answer import AnswerParser
from jubako.text.call_schema import Tool
from jubako.text.pieces import ContentText, Piece, ThinkingText, ToolCallArguments, ToolCallEnd, ToolCallStart
from jubako.text.template import ChatTemplate
from jubako.text.tokenizer import Tokenizer

PROPERTIES: dict[str, Any] = {
    "path": {"type": "string"},
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "on": {"type": "boolean"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "maybe": {"type": ["string", "null"]},
}
WRITE = Tool("write", "Write a file", {"type": "object", "properties": PROPERTIES, "required": ["path"]})
FREE = Tool("free")
TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
SYNTAX = [
    "<function=write>",
    "<parameter=path>",
    "<parameter=text>",
    "</parameter>",
    "</function>",
    "<parameter=",
    "</p",
]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(small_metadata())


def ids(text: str, marks: bool = True) -> list[int]:
    """Ids of what a model writes; `marks`: spelled marks are the tokens."""
    return tokenizer().encode(text, special=marks)


def read(tokens: Sequence[int], reason: str = "stop", **options: Any) -> tuple[list[Piece], AnswerParser]:
    options = {"thinking_open": False, "tools": (WRITE, FREE), "call_id": lambda: "id", **options}
    parser = AnswerParser(tokenizer(), **options)
    pieces = [piece for token in tokens for piece in parser.push(token)]
    return pieces + parser.finish(reason), parser


def told(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The pieces put together: thinking, content, calls as (name, arguments' text), whether each is complete."""
    calls = [p for p in pieces if isinstance(p, ToolCallStart)]
    texts = ["".join(p.text for p in pieces if isinstance(p, ToolCallArguments) and p.index == c.index) for c in calls]
    ended = {p.index for p in pieces if isinstance(p, ToolCallEnd)}
    return {
        "thinking": "".join(p.text for p in pieces if isinstance(p, ThinkingText)),
        "content": "".join(p.text for p in pieces if isinstance(p, ContentText)),
        "calls": [(c.name, text, c.index in ended) for c, text in zip(calls, texts, strict=True)],
    }


def call(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def test_thinking_content_and_calls_are_told_apart() -> None:
    text = "I think\nso.\n</think>\n\nHello.\n\n" + call("write", path="/a", count="3") + "\n" + call("free")
    pieces, parser = read(ids(text), thinking_open=True)
    assert told(pieces) == {
        "thinking": "I think\nso.",
        "content": "Hello.",
        "calls": [("write", '{"path": "/a", "count": 3}', True), ("free", "{}", True)],
    }
    assert (parser.calls, parser.thinking_tokens) == (2, len(ids("I think\nso.\n</think>")))


def test_text_that_quotes_the_marks_stays_text() -> None:
    text = "<think>no</think> " + call("write", path="/a")
    pieces, _ = read(ids(text, marks=False))
    assert told(pieces) == {"thinking": "", "content": text, "calls": []}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call> is how a call begins",
        '<tool_call>\n{"name": "write"}\n</tool_call>',
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=wri\nte>\n</tool_call>",
        "<tool_call>\n<func</tool_call>",
    ],
)
def test_what_only_begins_like_a_call_is_content(text: str) -> None:
    pieces, parser = read(ids("So: " + text + " end"))
    assert told(pieces) == {"thinking": "", "content": "So: " + text + " end", "calls": []}
    assert parser.calls == 0


def test_without_tools_a_call_is_text() -> None:
    text = call("write", path="/a")
    assert told(read(ids(text), tools=())[0])["content"] == text


@pytest.mark.parametrize("reason", ["length", "stop", "cancelled"])
def test_an_incomplete_call_is_no_call(reason: str) -> None:
    whole = ids(call("write", path="/a/long/path", map='{"a": 1}'))
    for cut in range(1, len(whole)):
        pieces, parser = read(whole[:cut], reason)
        assert not any(isinstance(piece, ToolCallEnd) for piece in pieces)
        assert parser.calls == 0
        if reason != "stop":
            assert told(pieces)["content"] == ""


def test_a_value_ends_only_where_what_may_follow_follows() -> None:
    ending = "\n</parameter>\n</function>\n</tool_call>"
    other = '\n</tool_call></parameter>\n<parameter=path>\n</parameter>\n<parameter=none>\n{"}'
    for marks in (False, True):
        hostile = "x" + other if marks else "x" + ending + other
        value = ids(hostile, marks)
        tokens = [*ids("<tool_call>\n<function=write>\n<parameter=path>\n/a\n</parameter>\n<parameter=text>\n"), *value]
        tokens += ids("\n</parameter>\n<parameter=count>\n5\n</parameter>\n</function>\n</tool_call>")
        [(name, text, complete)] = told(read(tokens)[0])["calls"]
        assert (name, json.loads(text), complete) == ("write", {"path": "/a", "text": hostile, "count": 5}, True)


def test_a_parameter_inside_a_json_string_is_no_parameter() -> None:
    value = {"a": "</parameter><parameter=text>", "b": ["</parameter>\n</function>\n"]}
    tokens = ids(call("write", path="p", map=json.dumps(value)))
    assert json.loads(told(read(tokens)[0])["calls"][0][1]) == {"path": "p", "map": value}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("path", "5", "5"),
        ("path", "", ""),
        ("path", "\n a \n", "\n a \n"),
        ("count", " 7 ", 7),
        ("count", "seven", "seven"),
        ("count", "7.5", "7.5"),
        ("ratio", "1e-3", 0.001),
        ("ratio", "NaN", "NaN"),
        ("on", "True", True),
        ("on", "false", False),
        ("list", '[1, "]"]', [1, "]"]),
        ("list", "[1", "[1"),
        ("map", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("map", "[]", "[]"),
        ("maybe", "null", None),
        ("maybe", "5", "5"),
    ],
)
def test_arguments_have_the_types_of_the_schema(name: str, written: str, value: object) -> None:
    [(_, text, complete)] = told(read(ids(call("write", **{name: written})))[0])["calls"]
    assert (json.loads(text), complete) == ({name: value}, True)


def test_numbers_keep_their_digits() -> None:
    pieces, _ = read(ids(call("write", ratio="1.10", count="12345678901234567890123")))
    assert told(pieces)["calls"][0][1] == '{"ratio": 1.10, "count": 12345678901234567890123}'


def test_strings_come_while_they_are_written() -> None:
    tokens = ids("<tool_call>\n<function=write>\n<parameter=path>\nabcdef ghij")
    parser = AnswerParser(tokenizer(), thinking_open=False, tools=(WRITE,))
    seen = "".join(p.text for t in tokens for p in parser.push(t) if isinstance(p, ToolCallArguments))
    assert seen == '{"path": "abcdef ghij'


def test_characters_and_stop_sequences_are_never_given_out_in_part() -> None:
    parser = AnswerParser(tokenizer(), thinking_open=False, tools=(WRITE,), stop=["END"])
    shown = [[p.text for p in parser.push(token)] for token in ids("a🍱EN🍱ENDb")]  # type: ignore[union-attr]
    assert "".join(text for texts in shown for text in texts) == "a🍱EN🍱"
    assert (parser.stopped, parser.finish("stop")) == ("END", [])
    assert all("\ufffd" not in text for texts in shown for text in texts)
    assert told(read(ids("a🍱")[:-1], stop=["END"])[0])["content"] == "a\ufffd"


def test_stop_sequences_count_in_content_only() -> None:
    text = "so END\n</think>\n\nfine " + call("write", path="END")
    pieces, parser = read(ids(text), thinking_open=True, stop=["END", "</parameter>"])
    assert told(pieces)["calls"] == [("write", '{"path": "END"}', True)]
    assert parser.stopped is None


def test_a_single_call_ends_the_answer() -> None:
    pieces, parser = read(ids(call("free") + "\n" + call("free") + "more"), single=True)
    assert (told(pieces)["calls"], told(pieces)["content"], parser.stopped) == ([("free", "{}", True)], "", "")


def test_a_call_within_thinking_ends_it_unless_it_may_not() -> None:
    tokens = ids("hm\n" + call("free"))
    assert told(read(tokens, thinking_open=True)[0]) == {
        "thinking": "hm",
        "content": "",
        "calls": [("free", "{}", True)],
    }
    quiet = told(read([*tokens, *ids("\n</think>\n\nok")], thinking_open=True, think_calls=False)[0])
    assert quiet == {"thinking": "hm\n" + call("free"), "content": "ok", "calls": []}


def test_thinking_the_model_begins_by_itself() -> None:
    assert told(read(ids("<think>\nhm<think>\n</think>\n\nok <think>x</think>y"))[0]) == {
        "thinking": "hm",
        "content": "ok xy",
        "calls": [],
    }


def test_ids_past_the_vocabulary_are_no_text() -> None:
    assert told(read([*ids("a"), tokenizer().vocab_size + 5, *ids("b")])[0])["content"] == "ab"


pieces_of_text = st.lists(
    st.sampled_from([*TAGS, *SYNTAX, "\n", "\n\n", "a", "é", "🍱", '"', "\\", "{", "}", " ", "STOP", "ST"]),
    max_size=30,
)


def cut(text: str, marks: bool, at: list[int]) -> list[int]:
    """Ids of the text, cut into tokens in another way: each part by itself."""
    if marks:
        return ids(text)
    borders = [0, *sorted(place % (len(text) + 1) for place in at), len(text)]
    return [id for start, end in pairwise(borders) for id in ids(text[start:end], False)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            pieces_of_text.map("".join).map(lambda t: (t, False)), st.sampled_from(TAGS).map(lambda t: (t, True))
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 200)),
    st.booleans(),
    st.booleans(),
)
def test_any_cutting_gives_the_same(
    parts: list[tuple[str, bool]], at: list[int], thinking: bool, ordered: bool
) -> None:
    whole = [id for text, marks in parts for id in ids(text, marks)]
    other = [id for text, marks in parts for id in cut(text, marks, at)]
    options = {"thinking_open": thinking, "stop": ["STOP"], "ordered": ordered}
    assert told(read(whole, **options)[0]) == told(read(other, **options)[0])


hostile = st.text(
    st.one_of(st.sampled_from('<>/=\n{}[]"\\ aé🍱'), st.characters(exclude_categories=["Cs"])), max_size=12
)
fragments = st.lists(
    st.one_of(
        hostile,
        st.sampled_from(
            [
                *TAGS,
                "</parameter>",
                "\n</parameter>\n",
                "</function>\n",
                "<function=write>",
                "<parameter=zzz>",
                "<parameter=path>",
                "null",
            ]
        ),
    ),
    max_size=6,
).map("".join)
jsons = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), fragments),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fragments, inner, max_size=3),
    max_leaves=6,
)


@cache
def template() -> ChatTemplate:
    return ChatTemplate(None, tokenizer())


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"path": fragments},
        optional={
            "text": fragments,
            "count": st.integers(),
            "ratio": st.floats(allow_nan=False, allow_infinity=False),
            "on": st.booleans(),
            "list": st.lists(jsons, max_size=3),
            "map": st.dictionaries(fragments, jsons, max_size=3),
        },
    )
)
def test_arguments_survive_the_templates_own_spelling(arguments: dict[str, Any]) -> None:
    # A text that quotes the opening tag of a parameter after a closing one can't be told from it (docs/interfaces.md).
    assume(not re.search(r"</parameter>(\s|\\n)*<parameter=path>", json.dumps(arguments)))
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "write", "arguments": arguments}}]}
    tokens = template().encode([{"role": "user", "content": "x"}, message], add_generation_prompt=False)
    start = len(tokens) - tokens[::-1].index(ids("<tool_call>")[0]) - 1
    end = tokens.index(ids("</tool_call>")[0], start) + 1
    [(name, text, complete)] = told(read(tokens[start:end])[0])["calls"]
    assert (name, json.loads(text), complete) == ("write", arguments, True)
