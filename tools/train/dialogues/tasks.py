# ruff: noqa: E501 - tables of sentences
"""The tasks: each makes one dialogue whose last turn is the right answer, and says how to tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from . import words as w
from .forms import form
from .functions import offer
from .smalltalk import exchange, small_talk
from .turns import Dialogue, Message

Filler = Callable[[Random, int], str]  # text of about so many characters


@dataclass(frozen=True)
class Case:
    """A dialogue, and what the last answer must hold: the text itself, the object, or the call."""

    dialogue: Dialogue
    expected: Any


def _thought(r: Random, text: str, chance: float = 0.35) -> str | None:
    """Reasoning for a turn, or none where it is told not to think."""
    return text if r.random() < chance else None


def marker(r: Random, filler: Filler) -> Case:
    """Repeat what was said at least 2,000 tokens earlier."""
    code = w.marker(r)
    what = r.choice(["marker", "code", "password", "secret phrase", "key"])
    first = r.choice(
        [
            f"Remember this {what}: {code}.",
            f"The {what} is {code}.",
            f"Keep this {what} in mind: {code}",
            f"{what.capitalize()}: {code}",
            f"Note the {what} {code}; I will ask for it.",
        ]
    )
    ask = r.choice(
        [
            f"What was the {what}?",
            f"Repeat the {what}.",
            f"Now tell me the {what}.",
            f"Which {what} did I give you?",
            f"Say the {what} again.",
        ]
    )
    text = filler(r, r.randint(7_600, 10_500) if r.random() < 0.75 else r.randint(200, 7_000))
    answer = r.choice([code, f"The {what} was {code}."])
    thought = _thought(r, f"The {what} given at the start is {code}.", 0.25)
    if r.random() < 0.5:
        turns = [Message("user", f"{first}\n\n{text}\n\n{ask}")]
    else:
        noted = Message(
            "assistant",
            r.choice(["Noted.", "I will remember it.", "All right.", "Understood."]),
            _thought(r, "The user wants me to remember something.", 0.2),
        )
        turns = [
            Message("user", first),
            noted,
            Message(
                "user", f"{r.choice(['Here is a text.', 'Read this:', 'Some text:', 'Now this:'])}\n\n{text}\n\n{ask}"
            ),
        ]
    return Case(Dialogue([*turns, Message("assistant", answer, thought)]), code)


def _sum_steps(a: int, b: int) -> str:
    """Column addition from the right."""
    steps, carry, width = [], 0, max(len(str(a)), len(str(b)))
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        steps.append(f"{x} + {y}" + (" + 1" if carry else "") + f" = {total}")
        carry = total // 10
    return "; ".join(steps) + f". So {a} + {b} = {a + b}."


def addition(r: Random, filler: Filler) -> Case:
    """Add two numbers of up to three digits."""
    a, b = (r.randint(0, 10 ** r.choice([1, 2, 3, 3, 3]) - 1) for _ in range(2))
    ask = r.choice(
        [
            f"What is {a} + {b}?",
            f"{a} + {b} = ?",
            f"Add {a} and {b}.",
            f"{a} plus {b}?",
            f"How much is {a} plus {b}?",
            f"Compute {a}+{b}.",
            f"Sum of {a} and {b}?",
        ]
    )
    return Case(
        Dialogue([Message("user", ask), Message("assistant", str(a + b), _thought(r, _sum_steps(a, b)))]), str(a + b)
    )


def sums(r: Random, filler: Filler) -> Case:
    """Many additions one after the other, for practice."""
    turns = [turn for _ in range(r.randint(3, 8)) for turn in addition(r, filler).dialogue.turns]
    return Case(Dialogue(turns), turns[-1].content)


def name(r: Random, filler: Filler) -> Case:
    """Recall a name given three turns before."""
    who = w.first_name(r)
    hello = r.choice(
        [
            f"Hi, my name is {who}.",
            f"Hello! I'm {who}.",
            f"I am {who}. Nice to meet you.",
            f"My name's {who}, by the way.",
            f"Call me {who}.",
            f"Good morning, {who} here.",
        ]
    )
    turns = [
        Message("user", hello),
        Message(
            "assistant",
            r.choice([f"Hello, {who}!", f"Nice to meet you, {who}.", f"Hi {who}. How can I help?", f"Welcome, {who}."]),
            _thought(r, f"The user is called {who}.", 0.25),
        ),
    ]
    for _ in range(r.choice([1, 2, 2, 2, 3])):
        turns += exchange(r)
    ask = r.choice(
        [
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Who am I?",
            "How am I called?",
            "Tell me my name.",
        ]
    )
    answer = r.choice([f"Your name is {who}.", f"You are {who}.", f"Your name is {who}."])
    turns += [
        Message("user", ask),
        Message("assistant", answer, _thought(r, f"The user said the name {who} at the start.")),
    ]
    return Case(Dialogue(turns), who)


def filled_json(r: Random, filler: Filler) -> Case:
    """Fill a JSON object from a sentence."""
    sentence, expected = form(r)
    keys = ", ".join(expected)
    ask = r.choice([
        f"Fill a JSON object with the keys {keys} from this sentence: {sentence}",
        f"{sentence}\n\nGive me this as JSON with {keys}.",
        f"Extract {keys} as a JSON object.\n\n{sentence}",
        f"Text: {sentence}\nKeys: {keys}\nAnswer with a JSON object only.",
    ])  # fmt: skip
    thought = _thought(r, "; ".join(f"{key} is {value}" for key, value in expected.items()) + ".", 0.3)
    return Case(Dialogue([Message("user", ask), Message("assistant", json.dumps(expected), thought)]), expected)


def called(r: Random, filler: Filler) -> Case:
    """Call the one fitting function of three with the right arguments."""
    tools, sentence, function, arguments = offer(r)
    thought = _thought(r, f"The function {function} fits.", 0.4)
    return Case(
        Dialogue([Message("user", sentence), Message("assistant", "", thought, [(function, arguments)])], tools),
        (function, arguments),
    )


def answered(r: Random, filler: Filler) -> Case:
    """A call, its result, and the answer; or small talk although functions are offered."""
    tools, sentence, function, arguments = offer(r)
    if r.random() < 0.3:
        return Case(Dialogue(exchange(r), tools), None)
    result = r.choice(
        ["done", "ok", w.invented(r), str(r.randint(1, 500)), f"{r.choice(w.COLOURS)} {r.choice(w.THINGS)}"]
    )
    final = "Done." if result in ("done", "ok") else r.choice([f"The result is {result}.", f"It says: {result}."])
    turns = [
        Message("user", sentence),
        Message("assistant", "", None, [(function, arguments)]),
        Message("tool", result),
        Message("assistant", final, _thought(r, "The result is there.", 0.2)),
    ]
    return Case(Dialogue(turns, tools), None)


def talk(r: Random, filler: Filler) -> Case:
    """Varied small talk and small questions."""
    dialogue = small_talk(r)
    return Case(dialogue, dialogue.turns[-1].content)


def reading(r: Random, filler: Filler) -> Case:
    """Find a fact that stands somewhere in a text."""
    fact, value = (
        f"{w.first_name(r)}'s {r.choice(w.THINGS)}",
        r.choice([r.choice(w.COLOURS), str(r.randint(2, 999)), w.invented(r)]),
    )
    before, after = filler(r, r.randint(200, 4000)), filler(r, r.randint(200, 4000))
    text = f"{before}\n\n{fact} is {value}.\n\n{after}\n\n{r.choice([f'What is {fact}?', f'The text says what {fact} is. What?'])}"
    return Case(
        Dialogue(
            [
                Message("user", text),
                Message(
                    "assistant",
                    r.choice([f"{fact} is {value}.", value]),
                    _thought(r, f"The text says: {fact} is {value}.", 0.25),
                ),
            ]
        ),
        value,
    )


TASKS: dict[str, tuple[Callable[[Random, Filler], Case], float]] = {  # weights are shares of dialogues, not of tokens
    "marker": (marker, 2.2),
    "addition": (addition, 10.0),
    "sums": (sums, 14.0),
    "name": (name, 10.0),
    "json": (filled_json, 14.0),
    "call": (called, 14.0),
    "answered": (answered, 3.0),
    "talk": (talk, 16.0),
    "reading": (reading, 1.5),
}
