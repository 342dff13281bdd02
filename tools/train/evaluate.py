"""Measure the small model through Jubako's CPU engine, greedily, on cases that training never saw.

python -m tools.train.evaluate MODEL.gguf .ship/corpus [--cases 200] [--tasks marker,addition,…]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

import jubako
from jubako.engine.model import Model

from .dialogues import TASKS, Case, render
from .prepare import KINDS, filler
from .vocabulary import texts

SEED = 1 << 41  # of the cases here; training counts up from zero
TESTED = ("marker", "addition", "name", "json", "call", "think")
MARKER_TOKENS = 2000


def prompt_of(case: Case, thinking: bool) -> str:
    """The dialogue up to the opening of its last answer, told to think or not."""
    last = case.dialogue.turns[-1]
    last.thought = "" if thinking else None
    pieces = render(case.dialogue)
    return "".join(text for text, _ in pieces[:-2])


def answer_to(model: Model, prompt: str, max_tokens: int = 160) -> str:
    """The greedy answer, special tokens spelled out."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(prompt, special=True)
    return "".join(token.text for token in model.generate(ids, max_tokens=max_tokens))


def parse_call(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and arguments of the only call in an answer."""
    found = re.fullmatch(r"\s*<tool_call>\n<function=([^>]+)>\n(.*)</function>\n</tool_call>\s*", text, re.S)
    if not found:
        return None
    return found[1], dict(re.findall(r"<parameter=([^>]+)>\n(.*?)\n</parameter>\n", found[2], re.S))


def right(task: str, case: Case, answer: str) -> bool:
    """Whether an answer (without its reasoning) is the right one."""
    if task == "json":
        try:
            return bool(json.loads(answer) == case.expected)
        except ValueError:
            return False
    if task == "call":
        name, arguments = case.expected
        wanted = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        return parse_call(answer) == (name, wanted)
    if task == "addition":
        return re.findall(r"\d+", answer)[-1:] == [case.expected]
    return re.search(rf"(?<!\w){re.escape(case.expected)}(?!\w)", answer) is not None


def cases(task: str, count: int, model: Model, pool: list[str]) -> list[Case]:
    """Cases of one task; markers at least MARKER_TOKENS before the end, names three user turns back."""
    found: list[Case] = []
    r = Random(SEED + list(TASKS).index(task))
    while len(found) < count:
        case = TASKS[task][0](r, partial(filler, pool))
        prompt = prompt_of(case, False)
        if task == "marker" and len(model.encode(prompt[prompt.rindex(case.expected) :])) < MARKER_TOKENS:
            continue
        if task == "name" and sum(turn.role == "user" for turn in case.dialogue.turns) != 4:
            continue
        found.append(case)
    return found


def score(task: str, count: int, model: Model, pool: list[str]) -> tuple[int, list[str]]:
    """How many of `count` cases are right, and what was said in the first wrong ones. Every fourth case thinks."""
    good = 0
    wrong: list[str] = []
    for number, case in enumerate(cases(task, count, model, pool)):
        thinking = number % 4 == 3
        text = answer_to(model, prompt_of(case, thinking))
        answer = text.split("</think>")[-1].strip() if thinking else text
        if right(task, case, answer):
            good += 1
        elif len(wrong) < 5:
            wrong.append(f"{case.expected!r} <- {text!r}")
    return good, wrong


def score_thinking(count: int, model: Model, pool: list[str]) -> tuple[int, list[str]]:
    """How often it reasons when told to (some text, the closing tag, an answer) and does not when told not to."""
    good = 0
    wrong: list[str] = []
    r = Random(SEED + 99)
    for number in range(count):
        task = r.choice(["addition", "name", "json", "call", "talk"])
        text = answer_to(model, prompt_of(TASKS[task][0](r, partial(filler, pool)), number % 2 == 0))
        before, closed, after = text.partition("</think>")
        obeyed = (
            bool(before.strip() and closed and after.strip())
            if number % 2 == 0
            else bool(text.strip()) and not closed and "<think>" not in text
        )
        good += obeyed
        if not obeyed and len(wrong) < 5:
            wrong.append(repr(text))
    return good, wrong


def bits_per_byte(model: Model, documents: Sequence[str], tokens: int, window: int = 2048) -> float:
    """Over the first `tokens` tokens of held-out documents, read in windows; the first token of each is not scored."""
    ids = [id for text in documents for id in model.encode(text)][:tokens]
    assert model.tokenizer is not None
    nats, size = 0.0, 0
    for start in range(0, len(ids) - window + 1, window):
        part = ids[start : start + window]
        logits = model.logits(part)[:-1]
        nats += float(torch.nn.functional.cross_entropy(logits, torch.tensor(part[1:]), reduction="sum"))
        size += len(model.tokenizer.decode(part[1:]).encode())
    return nats / size / 0.6931471805599453


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="+", help="the trunk, then the draft layer's file")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--tasks", default=",".join(TESTED))
    parser.add_argument("--tokens", type=int, default=0, help="held-out tokens of each kind for bits per byte")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = jubako.load(options.model, device="cpu", threads=options.threads)
    held: dict[str, Any] = {kind: texts(options.corpus, f"{kind}.held") for kind in KINDS}
    for kind in KINDS if options.tokens else ():
        print(f"{kind}: {bits_per_byte(model, held[kind], options.tokens):.4f} bits per byte", flush=True)
    pool = [text for kind in KINDS for text in held[kind]]
    for task in filter(None, options.tasks.split(",")):
        judge = score_thinking if task == "think" else partial(score, task)
        good, wrong = judge(options.cases, model, pool)
        print(f"{task}: {good} of {options.cases}", *wrong, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
