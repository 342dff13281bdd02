"""The training of the draft layer: lines that the trunk writes, rounds as the reference drafts them, stored weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import jubako
from jubako.arch.reference import Reference
from jubako.cli.open import small_model
from jubako.engine.model import Model as Engine
from jubako.quant import decode, encode

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.train import network
from tools.train.continuations import Lines, Writer
from tools.train.draft_loss import DraftLoss, kept
from tools.train.drafts import accepted
from tools.train.geometry import small_config
from tools.train.model import Model, make_pass
from tools.train.rounding import rounded
from tools.train.tune_drafts import load_gguf

LENGTH, GIVEN, WRITTEN = 64, 16, 40


@pytest.fixture(scope="module")
def engine() -> Engine:
    return jubako.load(small_model(), device="reference")


@pytest.fixture(scope="module")
def model() -> Model:
    net = network.Network(small_config())
    load_gguf(net, *small_model())
    net.requires_grad_(False)
    return Model(net)


@pytest.fixture(scope="module")
def beginnings(engine: Engine) -> torch.Tensor:
    texts = (
        "It was a cold evening, and the two of them had been walking along the river for an hour before they saw it.",
        "def read_lines(path):\n    with open(path) as file:\n        return [line.rstrip() for line in file if line]",
    )
    return torch.tensor([engine.encode(text)[:GIVEN] for text in texts])


@pytest.fixture(scope="module")
def lines(model: Model, beginnings: torch.Tensor) -> Lines:
    writer = Writer(model, len(beginnings), LENGTH, "cpu", graph=False)
    writer.streams = writer.streams.float()
    return writer.write(beginnings, torch.full((len(beginnings),), GIVEN))


def test_lines_are_what_the_trunk_would_write(model: Model, beginnings: torch.Tensor, lines: Lines) -> None:
    run = make_pass(model.config, LENGTH, False, torch.float32, "cpu")
    with torch.no_grad():
        streams, _ = model.streams(lines.ids[:, :-1], run)
        best = network.logits(streams, model.head, "", model.net.weights["output.weight"]).argmax(-1)
    assert torch.equal(lines.ids[:, :GIVEN], beginnings)
    assert torch.equal(lines.ids[:, GIVEN:], lines.best[:, GIVEN - 1 :])
    assert torch.equal(best, lines.best)
    assert float((streams - lines.streams).abs().max()) < 1e-2


def test_rounds_are_those_of_the_reference(
    engine: Engine, model: Model, beginnings: torch.Tensor, lines: Lines
) -> None:
    skip = 8
    losses = DraftLoss(model.config, make_pass(model.config, LENGTH, False, torch.float32, "cpu"), skip)
    trust = torch.ones(len(beginnings), LENGTH - skip)
    weights = model.net.weights
    loss, agreed = losses(lines.ids, lines.best, lines.streams, trust, model.parts[-1], model.head, *_ends(weights))
    assert 0 < float(loss) < 5
    reference = Reference(engine.network)
    for line, ids in enumerate(beginnings.tolist()):
        counted = kept(agreed[:, line : line + 1].numpy(), np.array([GIVEN - 1 - skip]), WRITTEN)
        assert counted.tolist() == accepted(reference, ids, WRITTEN)


def _ends(weights: dict[str, torch.nn.Parameter]) -> tuple[torch.Tensor, torch.Tensor]:
    return weights["token_embd.weight"], weights["output.weight"]


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0"])
def test_rounding_is_that_of_the_file(kind: str) -> None:
    values = torch.randn(40, 64, generator=torch.Generator().manual_seed(3))
    values[3] = 0
    stored = decode(kind, encode(kind, values.numpy()))
    assert float((rounded(values, kind) - torch.from_numpy(stored)).abs().max()) < 1e-6
