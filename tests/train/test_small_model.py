"""The model that ships: its files, its template, and that it does what its card says, on a few cases each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jubako
from jubako.arch.reference import Reference
from jubako.cli.open import small_model
from jubako.engine.model import Model
from jubako.files import read_gguf

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.train import peer
from tools.train.drafts import DEPTH, accepted

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


def test_two_files_of_at_most_24_megabytes() -> None:
    assert sum(path.stat().st_size for path in small_model()) <= 24_000_000


def test_the_first_file_is_the_trunk_and_the_second_the_draft_layer() -> None:
    trunk, drafts = (read_gguf(path) for path in small_model())
    assert trunk.metadata["qwen4exp.block_count"] == 8 and "qwen4exp.nextn_predict_layers" not in trunk.metadata
    assert not [name for name in trunk.tensors if name.startswith("blk.8.") or "nextn" in name]
    assert drafts.metadata["qwen4exp.block_count"] == 9 and drafts.metadata["qwen4exp.nextn_predict_layers"] == 1
    assert drafts.metadata["qwen4exp.nextn_shared_target_tensors"] is True
    assert {name.split(".")[1] for name in drafts.tensors} == {"8"}


def test_the_trunk_stands_alone() -> None:
    alone = jubako.load(small_model()[0], device="cpu", threads=1, context=256)
    assert alone.network.draft is None and alone.network.unused == []
    ids = alone.encode("It was a cold evening")
    assert "".join(token.text for token in alone.generate(ids, max_tokens=2)).strip()


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


TEXTS = {
    "prose": "The old house stood at the end of the lane. Nobody had lived in it for many years, and the",
    "code": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "documents": "4.1.  Error Handling\n\n   If the server receives a request that it cannot",
}


def test_most_drafts_are_kept(model: Model) -> None:
    reference, total = Reference(model.network), [0] * (DEPTH + 1)
    for text in TEXTS.values():
        total = [a + b for a, b in zip(total, accepted(reference, model.encode(text), 24), strict=True)]
    assert sum(total[:DEPTH]) >= 0.45 * DEPTH * total[DEPTH]


def test_drafts_of_an_answer_are_kept(model: Model) -> None:
    ids = model.encode_chat([{"role": "user", "content": "What is 86 + 640?"}], enable_thinking=True)
    kept = accepted(Reference(model.network), ids, 24)
    assert sum(kept[:DEPTH]) >= 0.8 * DEPTH * kept[DEPTH]


LLAMA = os.environ.get("JUBAKO_LLAMA_COMPLETION", "")


@pytest.mark.skipif(not LLAMA, reason="JUBAKO_LLAMA_COMPLETION does not name llama.cpp's llama-completion")
@pytest.mark.parametrize("prompt", [p for p in peer.PROMPTS if p.chat], ids=lambda p: p.name)
def test_llama_cpp_answers_the_same(prompt: peer.Prompt) -> None:
    trunk = small_model()[0]
    model = jubako.load(trunk, device="cpu", threads=1, kv_bits=16)
    text = prompt.text(model)
    assert peer.same(peer.ours(model, text), peer.theirs(Path(LLAMA), trunk, text))


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
