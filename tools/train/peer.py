"""The same greedy text from llama.cpp: ten short prompts of the kinds that the small model is for.

    python -m tools.train.peer LLAMA_COMPLETION [TRUNK.gguf]

Prints for each prompt how many tokens agree, and both texts where they part. The exit status counts those that part.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jubako
from jubako.cli.open import small_model
from jubako.engine.model import Model

LENGTH = 32  # tokens compared
MORE = 8  # asked of llama-completion beyond that, since it may end before its last words are printed
ENDS = ("<|im_end|>", "<|endoftext|>")


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("set_alarm", "Set an alarm", "time"),
    _tool("get_weather", "Weather of a city", "city"),
    _tool("play_music", "Play music", "title"),
]


FILLER = "The library is open from nine to five. On Sundays it is closed."


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or the turns of a chat."""

    name: str
    said: tuple[str, ...]
    chat: bool = True
    thinking: bool = False
    tools: bool = False

    def text(self, model: Model) -> str:
        """As the model reads it."""
        if not self.chat:
            return self.said[0]
        assert model.template is not None
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(self.said)]
        return model.template.render(messages, tools=TOOLS if self.tools else None, enable_thinking=self.thinking)


PROMPTS = (
    Prompt("addition", ("What is 482 + 519?",)),
    Prompt("addition, thinking", ("What is 86 + 640?",), thinking=True),
    Prompt(
        "name",
        (
            "Hi, my name is Velsora.",
            "Hello, Velsora!",
            "How many days has a week?",
            "A week has seven days.",
            "What's my name?",
        ),
    ),
    Prompt("marker", (f"Remember this marker: velvet-otter-41.\n\n{FILLER}\n\nWhat was the marker?",)),
    Prompt(
        "JSON",
        (
            "Nora Lind is 34 years old, lives in Oslo and works as a baker.\n\n"
            "Give me this as JSON with name, city, age.",
        ),
    ),
    Prompt("function call", ("How is the weather in Lisbon today?",), tools=True),
    Prompt("small talk", ("How many days has a week?",)),
    Prompt("code", ("class Point:\n    def __init__(self, x, y):\n        self.x = x\n",), chat=False),
    Prompt("document", ("   The client MUST NOT send the",), chat=False),
    Prompt("prose", ("The king said to his men:",), chat=False),
)


def ours(model: Model, prompt: str) -> list[str]:
    """The pieces of Jubako's greedy answer, its end token left out."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(prompt, special=True)
    return [token.text for token in model.generate(ids, max_tokens=LENGTH)]


def theirs(program: Path, trunk: Path, prompt: str) -> str:
    """What llama.cpp writes greedily, special tokens spelled out, and some more after the answer."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(prompt.encode())
        file.flush()
        options = ["-no-cnv", "--no-display-prompt", "-sp", "--temp", "0", "-n", str(LENGTH + MORE), "-c", "2048"]
        exact = ["-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
        command = [str(program), "-m", str(trunk), "-bf", file.name, *options, *exact]
        result = subprocess.run(command, capture_output=True, check=True, timeout=300)
    return result.stdout.decode()


def same(pieces: list[str], text: str) -> bool:
    """Whether llama.cpp wrote the same tokens, and ended where Jubako did."""
    answer = "".join(pieces)
    rest = text[len(answer) :].strip()  # may be missing, see MORE
    return text.startswith(answer) and (len(pieces) == LENGTH or not rest or rest.startswith(ENDS))


def agreeing(pieces: list[str], text: str) -> int:
    """How many pieces stand at the beginning of a text, one after the other."""
    for count, piece in enumerate(pieces):
        if not text.startswith(piece):
            return count
        text = text[len(piece) :]
    return len(pieces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="llama-completion")
    parser.add_argument("trunk", type=Path, nargs="?", default=small_model()[0])
    options = parser.parse_args()
    model = jubako.load(options.trunk, device="cpu", threads=1, kv_bits=16)
    parted = 0
    for prompt in PROMPTS:
        pieces, text = ours(model, prompt.text(model)), theirs(options.program, options.trunk, prompt.text(model))
        good = same(pieces, text)
        print(f"{prompt.name}: {agreeing(pieces, text)} of {len(pieces)} tokens agree{'' if good else ':'}", flush=True)
        if not good:
            print(f"    Jubako    {''.join(pieces)!r}\n    llama.cpp {text!r}")
        parted += not good
    print(f"{len(PROMPTS) - parted} of {len(PROMPTS)} answers are the same")
    return parted


if __name__ == "__main__":
    sys.exit(main())
