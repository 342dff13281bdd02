"""Messages, and the text of a dialogue as the chat template writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEMPLATE = (Path(__file__).parents[1] / "template.jinja").read_text()
CALLING = """To use a function, answer in this form and add nothing after it:

<tool_call>
<function=NAME>
<parameter=ARGUMENT>
value
</parameter>
</function>
</tool_call>"""


@dataclass
class Message:
    """One turn. `thought` is the reasoning of an assistant's turn; None where it was told not to think."""

    role: str
    content: str
    thought: str | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Dialogue:
    """Turns that end with the assistant's, and the functions offered."""

    turns: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


def plain(value: Any) -> str:
    """An argument as it stands in a call: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def answer(turn: Message) -> str:
    """What the model writes in an assistant's turn, after the opening that the template gives."""
    text = turn.content
    for name, arguments in turn.calls:
        body = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
        text += ("\n\n" if text else "") + f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"
    return text if turn.thought is None else f"{turn.thought}\n</think>\n\n{text}"


def opening(thinking: bool) -> str:
    """How the template opens the assistant's turn."""
    return "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")


def render(dialogue: Dialogue) -> list[tuple[str, bool]]:
    """The text in pieces; True marks what the model writes itself."""
    pieces: list[tuple[str, bool]] = []
    turns = list(dialogue.turns)
    system = turns.pop(0).content if turns[0].role == "system" else ""
    if dialogue.tools:
        listed = "\n".join(json.dumps(tool) for tool in dialogue.tools)
        tools = f"# Functions\n\n<tools>\n{listed}\n</tools>\n\n{CALLING}"
        system = f"{tools}\n\n{system}" if system else tools
    if system:
        pieces.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    for turn in turns:
        if turn.role == "assistant":
            pieces += [(opening(turn.thought is not None), False), (answer(turn) + "<|im_end|>", True), ("\n", False)]
        elif turn.role == "tool":
            pieces.append((f"<|im_start|>user\n<tool_response>\n{turn.content}\n</tool_response><|im_end|>\n", False))
        else:
            pieces.append((f"<|im_start|>user\n{turn.content}<|im_end|>\n", False))
    return pieces
