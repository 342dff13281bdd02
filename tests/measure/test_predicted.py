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
from jubako.measure.gpu_figures import GpuReport, PromptTime, StepTime
from jubako.measure.predicted import Predictor, table
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


def test_a_gpus_report_is_put_beside_the_plan() -> None:
    predictor = Predictor(census(), machine(1), make_plan(census(), machine(1), Wish()))
    step = StepTime(depth=0, sequences=1, width=4, milliseconds=8.0, runs=[8.0], host=10.0, moved=1, share=0.1)
    report = GpuReport("card", "random", 8, 1e12, 1, 1, 1.0)
    report.steps.append(step)
    report.prompts.append(PromptTime(tokens=512, depth=0, seconds=0.5, tokens_per_second=1024))
    report.prompts.append(PromptTime(tokens=512, depth=4096, seconds=0.6, tokens_per_second=900))
    rows = predictor.beside(report)
    assert [row["what"] for row in rows] == ["step of 4 after 0", "prompt of 512"]
    assert rows[0]["measured"] == 10.0 and rows[0]["predicted"] == pytest.approx(4000 / predictor.decode(0, 4))
    assert rows[1]["measured"] == 500.0 and rows[1]["ratio"] == pytest.approx(0.5 * predictor.prefill(512) / 512)
    assert table(rows).count("\n") == 5 and "| prompt of 512 | 500.00 |" in table(rows)
