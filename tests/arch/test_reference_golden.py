"""The reference against what the official network gave for the tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from jubako.arch.reference import Reference
from jubako.arch.weights import load_network
from jubako.files import open_model

PROMPTS = ("0", "1", "2")
TOLERANCE = 1e-4  # of the largest saved value


@pytest.fixture(scope="module", params=["gguf", "safetensors"])
def reference(request: pytest.FixtureRequest, tiny: Path, tiny_checkpoint: Path) -> Reference:
    paths = [tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"] if request.param == "gguf" else [tiny_checkpoint]
    network = load_network(open_model(paths))
    assert network.unused == []
    return Reference(network)


def assert_close(actual: torch.Tensor, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert np.abs(actual.numpy() - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_and_last_streams(reference: Reference, golden: Mapping[str, np.ndarray], prompt: str) -> None:
    saved = golden[prompt + ".logits"]
    state = reference.new_state()
    streams = reference.residual(golden[prompt + ".ids"], state)
    logits = reference.head(streams)
    assert_close(logits[-len(saved) :], saved)
    assert logits.argmax(dim=-1).tolist() == golden[prompt + ".argmax"].tolist()
    assert_close(streams[-1].flatten(), golden[prompt + ".residual_last"])
    assert torch.allclose(reference.logits(golden[prompt + ".ids"]), logits, rtol=0, atol=1e-5 * float(logits.max()))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_draft_logits(reference: Reference, golden: Mapping[str, np.ndarray], prompt: str) -> None:
    saved = golden[prompt + ".mtp_logits"]
    logits = reference.draft_logits(golden[prompt + ".ids"])
    assert_close(logits[-len(saved) :], saved)
    assert logits.argmax(dim=-1).tolist() == golden[prompt + ".mtp_argmax"].tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text(reference: Reference, golden: Mapping[str, np.ndarray], prompt: str) -> None:
    state = reference.new_state()
    logits = reference.forward(golden[prompt + ".ids"], state, rows=[-1])
    chosen = []
    for _ in golden[prompt + ".greedy"]:
        chosen.append(int(logits[-1].argmax()))
        logits = reference.forward(chosen[-1:], state)
    assert chosen == golden[prompt + ".greedy"].tolist()


def test_token_by_token_equals_whole_prompt(reference: Reference, golden: Mapping[str, np.ndarray]) -> None:
    ids = golden["1.ids"][:150]
    whole = reference.logits(ids)
    state = reference.new_state()
    single = torch.cat([reference.forward([token], state) for token in ids])
    assert_close(single, whole.numpy(), 1e-5)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 7), (64, 65), (99,), (149,)])
def test_chunked_prompt_equals_whole_prompt(
    reference: Reference, golden: Mapping[str, np.ndarray], cuts: tuple[int, ...]
) -> None:
    ids = golden["1.ids"][:150]
    state = reference.new_state()
    parts = [reference.forward(part, state) for part in np.split(ids, cuts)]
    assert_close(torch.cat(parts), reference.logits(ids).numpy(), 1e-5)


def test_draft_steps_equal_whole_draft(reference: Reference, golden: Mapping[str, np.ndarray]) -> None:
    ids = golden["2.ids"]
    state = reference.new_state()
    streams = reference.residual(ids, state)
    steps = [reference.draft(ids[p + 1 : p + 2], streams[p : p + 1], state)[0] for p in range(len(ids) - 1)]
    assert_close(torch.cat(steps), reference.draft_logits(ids).numpy(), 1e-5)


def test_original_safetensors(shared_golden: Path, golden: Mapping[str, np.ndarray]) -> None:
    network = load_network(open_model(shared_golden / "tiny" / "model.safetensors"))
    assert network.unused == []
    reference = Reference(network)
    assert_close(reference.logits(golden["0.ids"]), golden["0.logits"])
    assert_close(reference.draft_logits(golden["0.ids"]), golden["0.mtp_logits"])
