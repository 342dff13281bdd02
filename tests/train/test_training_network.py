"""The training network against the reference, through an exported file, and the dialogues against the template."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import jubako
from jubako.arch.reference import Reference
from jubako.arch.weights import load_network
from jubako.cli.open import small_model
from jubako.files import open_model

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.train import network
from tools.train.dialogues import TASKS, render
from tools.train.export import write_gguf
from tools.train.geometry import small_config
from tools.train.model import Model, make_pass

TOKENS = 704  # beyond the budget of 512


@pytest.fixture(scope="module")
def net() -> network.Network:
    torch.manual_seed(0)
    made = network.Network(small_config())
    with torch.no_grad():
        for name, weight in made.weights.items():
            if "norm" in name:
                weight += 0.1 * torch.randn_like(weight)
    return made


@torch.no_grad()
def test_logits_equal_the_reference(net: network.Network, tmp_path: Path) -> None:
    config = net.config
    assert config.ngram is not None
    vocabulary = open_model(small_model()).metadata
    tokenizer = {key: value for key, value in vocabulary.items() if key.startswith("tokenizer.")}
    path = tmp_path / "f32.gguf"
    write_gguf(path, config, dict(net.weights), tokenizer, "f32")
    reference = Reference(load_network(open_model(path)))
    ids = np.random.default_rng(0).integers(0, 300, TOKENS + 1)
    ids[[50, 200, 202]] = config.ngram.eos
    model, tokens = Model(net), torch.from_numpy(ids)[None]
    run = make_pass(config, TOKENS, True, torch.float32, "cpu")
    streams, _ = model.streams(tokens[:, :-1], run)
    logits = network.logits(streams, model.head, "", net.weights["output.weight"])[0]
    state = reference.new_state()
    residual = reference.residual(ids[:-1], state)
    error = (logits - reference.head(residual)).abs().amax(dim=1)
    assert float(error[:512].max()) < 1e-4
    assert float((error > 1e-4).float().mean()) < 0.02  # blocks whose scores nearly tie

    drafted, _ = model.draft(streams[:, :512], tokens[:, 1:513], make_pass(config, 512, False, torch.float32, "cpu"))
    drafts = network.logits(drafted, model.parts[-1], "nextn.hc_head_", net.weights["output.weight"])[0]
    expected, _ = reference.draft(ids[1:513], residual[:512], state)
    assert float((drafts - expected).abs().max()) < 1e-4


def test_gradients_reach_every_weight(net: network.Network) -> None:
    run = make_pass(net.config, 192, True, torch.bfloat16, "cpu", probes=16)
    ids = torch.randint(0, 300, (1, 193))
    losses = Model(net).losses(ids, torch.ones(1, 193), run, drafted=1)
    (losses.token + losses.drafts.sum() + losses.layers.sum()).backward()
    assert [name for name, w in net.weights.items() if w.grad is None or not w.grad.isfinite().all()] == []


@pytest.mark.parametrize("task", ["call", "answered", "talk", "name"])
def test_the_template_writes_what_was_trained_on(task: str) -> None:
    template = jubako.load(small_model(), device="reference").template
    assert template is not None
    for seed in range(5):
        dialogue = TASKS[task][0](Random(seed), lambda *_: "").dialogue
        messages: list[dict[str, Any]] = []
        for turn in dialogue.turns:
            message: dict[str, Any] = {"role": turn.role, "content": turn.content, "reasoning_content": turn.thought}
            message["tool_calls"] = [{"function": {"name": n, "arguments": a}} for n, a in turn.calls]
            messages.append(message)
        text = template.render(messages, tools=dialogue.tools or None, add_generation_prompt=False)
        assert text == "".join(piece for piece, _ in render(dialogue))
