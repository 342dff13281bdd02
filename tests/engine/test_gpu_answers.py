"""Answers of the model that ships on a GPU: each text is what it would be alone, without drafts, read from the start.

Too much for the interpreter; `test_gpu_steps` asks the same of what lies around the kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from together import SMALL, alone, request, run, words

import jubako
from jubako.arch.weights import load_network
from jubako.core import Finished, Request
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.model import Model
from jubako.engine.saved.store import SessionStore
from jubako.engine.scheduler import Scheduler
from jubako.files import open_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="whole answers take the interpreter hours")
CONTEXT = 1024
ONE_CHUNK = 60  # tokens of a prompt that is read in one go whoever decodes beside it: other cuts round otherwise


def model_of(sequences: int) -> Model:
    """A model as after a start, whose GPU knows no conversation."""
    files = open_model(SMALL)
    network = load_network(files)
    executor = GpuExecutor(
        network, torch.device("cuda"), context=CONTEXT, tokens=sequences * CONTEXT, sequences=sequences
    )
    return Model(network, executor, files, CONTEXT)


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(2)


def choices(rng: np.random.Generator) -> dict[str, Any]:
    """How an answer's tokens may be chosen: from those that the device finds, or from all of them."""
    options: dict[str, Any] = {"seed": int(rng.integers(1000)), "temperature": float(rng.choice([0, 0, 0.5, 1, 1.7]))}
    if rng.integers(2):
        options |= {"top_k": int(rng.choice([0, 5, 40, 100])), "top_p": float(rng.choice([0.9, 1.0]))}
    if rng.integers(3) == 0:
        options |= {"repetition_penalty": 1.2, "frequency_penalty": 0.3}
    return options


@pytest.mark.parametrize("case", range(12))
def test_text_is_the_same_whatever_is_drafted(model: jubako.Model, case: int) -> None:
    rng = np.random.default_rng(case)
    prompt = words(rng, int(rng.integers(1, 300)))
    options = choices(rng) | {"max_tokens": int(rng.integers(8, 60)), "stop_ids": ()}
    plain = list(model.generate(prompt, **options, drafts=0))
    if rng.integers(2):  # an end token in the middle of a step
        options["stop_ids"] = [plain[int(rng.integers(2, len(plain)))]]
        plain = list(model.generate(prompt, **options, drafts=0))
    for drafts in ({"drafts": int(rng.integers(1, 16)), "fixed_drafts": True}, {}, {"drafts": 3, "draft_floor": 0.5}):
        assert list(model.generate(prompt, **options, **drafts)) == plain, drafts


@pytest.fixture(scope="module")
def crowd(model: jubako.Model) -> list[tuple[Request, list[int]]]:
    """Requests with their texts alone."""
    rng = np.random.default_rng(7)
    requests = [
        request(f"r{i}", words(rng, int(rng.integers(1, ONE_CHUNK))), int(rng.integers(8, 40)), **choices(rng))
        for i in range(11)
    ]
    return [(one, alone(model, one)) for one in requests]


@pytest.mark.parametrize("drafts", [0, 1, 3, None])
def test_each_of_eight_texts_is_what_it_would_be_alone(
    crowd: list[tuple[Request, list[int]]], drafts: int | None
) -> None:
    """Three wait until others have ended."""
    scheduler = Scheduler(model_of(9), sequences=8, drafts=drafts, prefix_bytes=64 << 20)
    together = []
    heard = run(scheduler, *(one for one, _ in crowd), after=lambda _: together.append(len(scheduler._running)))
    assert max(together) == 8
    for one, text in crowd:
        assert heard.tokens(one.id) == text
        assert isinstance(heard.end(one.id), Finished)
    scheduler.close()


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    """From pages and state on the disk; only the end of the prompt is read, and the text is the one before."""
    prompt = words(np.random.default_rng(1), 500)
    first, again = (request(id, prompt, 24, temperature=0.8, seed=5) for id in "ab")
    texts = []
    for one, cached in ((first, 0), (again, 448)):
        scheduler = Scheduler(model_of(3), sequences=2, store=SessionStore(tmp_path))
        heard = run(scheduler, one)
        assert heard.reading(one.id)[0].cached == cached
        texts.append(heard.tokens(one.id))
        scheduler.close()
    assert len(texts[0]) == 24 and texts[1] == texts[0]
