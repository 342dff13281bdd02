"""What benchmarks print beside what they measure."""

from __future__ import annotations

from pathlib import Path

import pytest
from place.planned import census, machine

from jubako.arch.weights import load_network
from jubako.cli.bench import _beside
from jubako.files import open_model
from jubako.measure import predicted
from jubako.measure.bench import bench
from jubako.measure.predicted import Predictor
from jubako.place.fit import make_plan
from jubako.place.plan import Wish


def test_it_says_what_the_plan_says() -> None:
    plan = make_plan(census(), machine(1), Wish())
    assert plan.speed is not None
    predictor = Predictor(census(), machine(1), plan)
    assert predictor.decode(0) == pytest.approx(plan.speed.flat.rate)
    assert predictor.prefill(8192) == pytest.approx(plan.speed.prompts[8192].rate)
    assert predictor.decode(100_000) < predictor.decode(0)
    assert 1 < predictor.decode(0, columns=4) / predictor.decode(0) < 4


def test_a_benchmark_has_both(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "this_machine", lambda kinds, place: machine())
    monkeypatch.setattr("jubako.measure.bench.read_bandwidth", lambda: 1e9)
    report = bench([tiny / "tiny-mixed.gguf"], [0], prompt=6, tokens=3, repeat=1, device="cpu")
    rate = report.as_json()["rates"][0]
    assert rate["predicted_decode"] > 0 and rate["predicted_prefill"] > 0 and rate["decode"] > 0
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    assert Predictor.here(network, tiny, Wish(ram=10**6)) is None


def test_how_it_is_shown() -> None:
    assert _beside(100.0, 112.0) == "100.0 (+12%)"
    assert _beside(None, 112.0) == "-"
