"""The model that ships: its file, its template, and that it does what its card says, on a few cases each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import jubako
from jubako.cli.open import small_model
from jubako.engine.model import Model

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def model() -> Model:
    return jubako.load(small_model(), device="cpu", threads=1, context=4096)


@pytest.fixture(scope="module")
def ask(model: Model) -> Ask:
    def answer(*said: str, tools: list[dict[str, Any]] | None = None, thinking: bool = False) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
        ids = model.encode_chat(messages, tools=tools, enable_thinking=thinking)
        return "".join(token.text for token in model.generate(ids, max_tokens=120))

    return answer


def test_one_file_of_at_most_24_megabytes() -> None:
    assert small_model().stat().st_size <= 24_000_000


def test_every_tensor_is_used(model: Model) -> None:
    assert model.network.unused == []
    assert model.network.draft is not None


def test_adds(ask: Ask) -> None:
    assert [ask(f"What is {a} + {b}?") for a, b in ((482, 519), (7, 5), (86, 640))] == ["1001", "12", "726"]


def test_recalls_a_name(ask: Ask) -> None:
    said = ("Hi, my name is Velsora.", "Hello, Velsora!", "How many days has a week?", "A week has seven days.")
    assert "Velsora" in ask(*said, "What's my name?")


def test_fills_json(ask: Ask) -> None:
    sentence = "Nora Lind is 34 years old, lives in Oslo and works as a baker."
    assert json.loads(ask(f"{sentence}\n\nGive me this as JSON with name, city, age.")) == {
        "name": "Nora Lind",
        "city": "Oslo",
        "age": 34,
    }


def test_calls_the_fitting_function(ask: Ask) -> None:
    tools = [_tool("set_alarm", "Set an alarm", "time"), _tool("get_weather", "Weather of a city", "city")]
    tools.append(_tool("play_music", "Play music", "title"))
    expected = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLisbon\n</parameter>\n</function>\n</tool_call>"
    assert ask("How is the weather in Lisbon today?", tools=tools) == expected


def test_thinks_as_told(ask: Ask) -> None:
    thought, closed, answer = ask("What is 12 + 30?", thinking=True).partition("</think>")
    assert thought.strip() and closed and answer.strip() == "42"
    assert "</think>" not in ask("What is 12 + 30?")


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
