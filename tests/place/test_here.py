"""The plan that the engine loads by."""

from __future__ import annotations

from pathlib import Path

import pytest
from place.planned import machine

from jubako.arch.weights import load_network
from jubako.files import open_model
from jubako.place import here
from jubako.place.plan import Wish


def test_the_engine_gets_a_plan_without_measuring(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "known_or_nominal", lambda place: machine(1))
    network = load_network(open_model([tiny / "tiny-mixed.gguf", tiny / "tiny-mtp.gguf"]))
    plan = here.plan_here(network, tiny, Wish(context=128, sequences=2, slots=3))
    layers = len(network.layers) + 1
    assert plan.fits and plan.device == "cuda" and plan.slots == (3,) * layers
    assert plan.ram_experts == (network.config.experts,) * layers and plan.context == 128
