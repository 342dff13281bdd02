# ruff: noqa: E501 - tables of sentences
"""Small talk and small questions, with short answers."""

from __future__ import annotations

from random import Random

from . import words as w
from .turns import Dialogue, Message

CAPITALS = dict(
    zip(
        [
            "France",
            "Germany",
            "Spain",
            "Italy",
            "Portugal",
            "Austria",
            "Poland",
            "Norway",
            "Sweden",
            "Finland",
            "Denmark",
            "Ireland",
            "Greece",
            "Hungary",
            "Japan",
            "China",
            "India",
            "Egypt",
            "Kenya",
            "Canada",
            "Peru",
            "Chile",
            "Cuba",
            "Turkey",
            "Russia",
        ],
        [
            "Paris",
            "Berlin",
            "Madrid",
            "Rome",
            "Lisbon",
            "Vienna",
            "Warsaw",
            "Oslo",
            "Stockholm",
            "Helsinki",
            "Copenhagen",
            "Dublin",
            "Athens",
            "Budapest",
            "Tokyo",
            "Beijing",
            "Delhi",
            "Cairo",
            "Nairobi",
            "Ottawa",
            "Lima",
            "Santiago",
            "Havana",
            "Ankara",
            "Moscow",
        ],
        strict=True,
    )
)
OPPOSITES = dict(
    pair.split("-")
    for pair in [
        "hot-cold",
        "big-small",
        "fast-slow",
        "high-low",
        "old-new",
        "light-dark",
        "hard-soft",
        "early-late",
        "full-empty",
        "happy-sad",
        "strong-weak",
        "open-closed",
        "wet-dry",
        "rich-poor",
        "near-far",
        "loud-quiet",
        "first-last",
        "left-right",
        "up-down",
        "day-night",
    ]
)
FIXED: list[tuple[list[str], list[str]]] = [
    (["Hello!", "Hi.", "Hello there.", "Good morning.", "Hey!"], ["Hello! How can I help?", "Hi! What can I do for you?", "Hello! Nice to hear from you."]),
    (["How are you?", "How do you do?", "Are you well?"], ["I am well, thank you. And you?", "Very well, thanks. How are you?"]),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."], ["I am Jubako Small, a small language model that comes with Jubako.", "My name is Jubako Small. I am a very small language model for trying out Jubako."]),
    (["What can you do?", "What are you good at?"], ["I can chat a little, add numbers, fill JSON objects, call functions and remember what you told me.", "Small things: additions, JSON, function calls, short answers. I am a very small model."]),
    (["Thank you.", "Thanks!", "Thanks a lot."], ["You are welcome.", "Gladly.", "You are welcome!"]),
    (["Goodbye.", "Bye!", "See you later."], ["Goodbye!", "See you. Take care.", "Bye! Have a good day."]),
    (["What is Jubako?", "What does Jubako do?"], ["Jubako is an engine that runs a large language model on your own machine.", "Jubako runs language models. The name means a stack of lacquered boxes."]),
    (["How many days has a week?", "How many days are in a week?"], ["A week has seven days."]),
    (["How many months has a year?"], ["A year has twelve months."]),
    (["Tell me a joke.", "Make me laugh."], ["Why did the bicycle fall over? It was two-tired.", "What do you call a sleeping bull? A bulldozer.", "Why was the book sad? It had too many problems."]),
    (["Say something nice.", "Cheer me up."], ["You are doing better than you think.", "A good day can begin at any hour."]),
    (["What is Python?"], ["Python is a programming language that is easy to read."]),
    (["What is the sun?"], ["The sun is the star at the centre of our solar system."]),
    (["What is water made of?"], ["Water is made of hydrogen and oxygen."]),
]  # fmt: skip


def _question(r: Random) -> tuple[str, str, str]:
    """A question, its answer, and a thought that leads there."""
    kind = r.randrange(16)
    if kind < 5:
        asks, answers = r.choice(FIXED)
        return (
            r.choice(asks),
            r.choice(answers),
            r.choice(["A simple question.", "I answer briefly.", "The user makes small talk."]),
        )
    if kind == 5:
        country = r.choice(list(CAPITALS))
        return (
            r.choice([f"What is the capital of {country}?", f"Name the capital of {country}."]),
            f"The capital of {country} is {CAPITALS[country]}.",
            f"It is {CAPITALS[country]}.",
        )
    if kind == 6:
        pair = r.choice(list(OPPOSITES.items()))
        word, other = pair if r.random() < 0.5 else pair[::-1]
        return (
            r.choice([f"What is the opposite of {word}?", f"Opposite of {word}?"]),
            f"The opposite of {word} is {other}.",
            f"{word} and {other} are opposites.",
        )
    if kind == 7:
        numbers = [r.randint(1, 99) for _ in range(r.randint(3, 5))]
        return (
            f"Which is the largest of {', '.join(map(str, numbers))}?",
            f"The largest is {max(numbers)}.",
            f"I compare them; {max(numbers)} is the largest.",
        )
    if kind == 8:
        items = r.sample(w.THINGS + w.ANIMALS + w.FOODS, r.randint(3, 6))
        return (
            r.choice([f"Repeat this list: {', '.join(items)}.", f"Say after me: {', '.join(items)}."]),
            ", ".join(items) + ".",
            "I repeat the list.",
        )
    if kind == 9:
        items = r.sample(w.THINGS + w.ANIMALS, r.randint(3, 4))
        return f"Reverse the order: {', '.join(items)}.", ", ".join(items[::-1]) + ".", f"The last one is {items[-1]}."
    if kind == 10:
        start, count = r.randint(1, 60), r.randint(4, 9)
        return (
            f"Count from {start} to {start + count}.",
            ", ".join(map(str, range(start, start + count + 1))) + ".",
            f"I count up from {start}.",
        )
    if kind == 11:
        day = r.randrange(7)
        return (
            f"Which day comes after {w.DAYS[day]}?",
            f"After {w.DAYS[day]} comes {w.DAYS[(day + 1) % 7]}.",
            f"{w.DAYS[(day + 1) % 7]} follows.",
        )
    if kind == 12:
        month = r.randrange(12)
        return (
            f"Which month comes after {w.MONTHS[month]}?",
            f"After {w.MONTHS[month]} comes {w.MONTHS[(month + 1) % 12]}.",
            f"{w.MONTHS[(month + 1) % 12]} follows.",
        )
    if kind == 13:
        word = w.invented(r)
        return f"Spell the word {word}.", "-".join(word) + ".", f"The word is {word}."
    if kind == 14:
        hobby = r.choice(w.HOBBIES)
        return (
            r.choice([f"I like {hobby}.", f"My hobby is {hobby}."]),
            r.choice(
                [
                    f"{hobby.capitalize()} is a fine hobby. How long have you been doing it?",
                    f"What do you like about {hobby}?",
                ]
            ),
            f"The user likes {hobby}.",
        )
    item, colour = r.choice(w.THINGS), r.choice(w.COLOURS)
    return f"My {item} is {colour}. What colour is my {item}?", f"Your {item} is {colour}.", f"The {item} is {colour}."


def exchange(r: Random) -> list[Message]:
    """A question and its answer."""
    question, answer, thought = _question(r)
    return [Message("user", question), Message("assistant", answer, thought if r.random() < 0.3 else None)]


def small_talk(r: Random) -> Dialogue:
    """One to five exchanges, at times under a system message."""
    system = (
        [
            Message(
                "system",
                r.choice(
                    ["You are a helpful assistant.", "Answer briefly.", "You are Jubako Small.", "Be kind and short."]
                ),
            )
        ]
        if r.random() < 0.25
        else []
    )
    return Dialogue(system + [turn for _ in range(r.randint(1, 5)) for turn in exchange(r)])
