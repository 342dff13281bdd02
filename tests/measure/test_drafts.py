"""The measurement of drafts on the shipped model: its sums, and that the command shows them."""

from pathlib import Path

import pytest
from rich.console import Console

import jubako
from jubako.cli.bench import show_drafts
from jubako.cli.open import small_model
from jubako.errors import JubakoError
from jubako.measure import drafts as drafts_module
from jubako.measure.drafts import KINDS, measure_drafts, prompts


@pytest.fixture(scope="module")
def model() -> jubako.Model:
    return jubako.load(small_model(), device="cpu", threads=1)


def test_sums_are_those_of_the_answers(model: jubako.Model) -> None:
    rates = measure_drafts(model, 3, fixed=True, tokens=24, repeat=1)
    assert [rate.kind for rate in rates] == list(KINDS)
    for rate in rates:
        steps = rate.drafted[0] if rate.kind != "dialogue" else None
        assert len(rate.drafted) == 3 and rate.accepted == sorted(rate.accepted, reverse=True)
        assert all(kept <= made for kept, made in zip(rate.accepted, rate.drafted, strict=False))
        assert 1 < rate.tokens_per_step <= 4 and 0 < rate.draft_ms < rate.ms
        count = len(prompts(model, rate.kind))
        read = rate.tokens - count
        if steps:
            assert read / (steps + count) - 0.5 < rate.tokens_per_step <= read / steps + 0.5
        tokens_ms = rate.ms / rate.tokens_per_step
        assert rate.speed_up == pytest.approx(rate.plain_ms / tokens_ms, rel=1e-6)
    console = Console(record=True, width=160)
    show_drafts(rates, console)
    text = console.export_text()
    assert all(kind in text for kind in KINDS) and f"{rates[0].speed_up:.2f}×" in text


def test_prompts_fit_the_shipped_model(model: jubako.Model) -> None:
    for kind in KINDS:
        assert len(prompts(model, kind)) >= 4
        assert all(8 < len(ids) < 400 for ids in prompts(model, kind))


def test_a_text_that_drafts_change_is_an_error(model: jubako.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(range(100))

    class Changing:
        stats = jubako.core.GenerationStats()

        def __iter__(self) -> object:
            return iter([next(texts)])

    monkeypatch.setattr(model, "generate", lambda *_, **__: Changing())
    with pytest.raises(JubakoError, match="drafts changed the text of prompt 1 of prose"):
        measure_drafts(model, 3, tokens=4, repeat=1)


def test_prompt_files_are_packed() -> None:
    assert {path.name for path in Path(drafts_module.PROMPTS).iterdir()} >= {f"{kind}.txt" for kind in KINDS}
