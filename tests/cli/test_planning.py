"""`plan`, `check`, `probe` and `pull` as a shell calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from place.planned import census, machine
from typer.testing import CliRunner

from jubako.cli import app, boxes, fitting
from jubako.errors import FileFormatError, JubakoError, MachineError, RequestError
from jubako.place import probe
from jubako.place.check import judge
from jubako.place.fit import make_plan
from jubako.place.machine import Machine
from jubako.place.plan import Box, Part, Wish

DATA = Path(__file__).parents[1] / "data"
FIGURES = str(DATA / "machines" / "h200.json")
TINY = str(DATA / "tiny" / "tiny-mixed.gguf")


def call(*words: str, width: int = 100) -> tuple[int, str]:
    """Exit code and standard output."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(width)})
    if isinstance(result.exception, JubakoError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_a_plan_from_a_header() -> None:
    code, text = call("plan", TINY, "--machine", FIGURES, "--gpus", "none")
    assert code == 0
    assert "Fits." in text
    for word in ("RAM", "SSD", "decode, flat routing", "prompt of 512", "together", "GB of 120 GB"):
        assert word in text


def test_a_plan_of_a_published_model_on_a_smaller_machine() -> None:
    code, text = call("plan", "--like", "UD-IQ3_XXS", "--machine", FIGURES, "--vram", "12G", "--ram", "64G")
    assert code == 0
    assert "of 12.0 GB" in text and "of 64.0 GB" in text and "absent experts" in text and "CPU threads" in text
    assert "its geometry" in text


def test_exit_codes_tell_scripts() -> None:
    like = ("plan", "--like", "UD-IQ3_XXS", "--machine", FIGURES, "--no-terms", "--gpus", "none")
    assert call(*like)[0] == 0
    assert call(*like, "--ram", "24G")[0] == 3
    code, text = call(*like, "--ram", "2G")
    assert code == 1 and "Does not fit." in text and "2.0 GB may be used" in text
    assert call("check", "--machine", FIGURES, "--gpus", "none", "--ram", "2G")[0] == 1


@pytest.mark.parametrize("words", [("plan", "--like", "UD-IQ3_XXS"), ("check",)])
def test_more_context_than_the_model_takes_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="context is 262145; this model takes 1 to 262144"):
        call(*words, "--machine", FIGURES, "--context", "262145")


def test_a_file_without_figures_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"version": 0}')
    with pytest.raises(FileFormatError, match=r"other\.json.*version 0"):
        call("plan", TINY, "--machine", str(tmp_path / "other.json"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for wrong in (tmp_path / "deep.json", tmp_path):
        with pytest.raises(FileFormatError, match=f"{wrong}: no figures of a machine"):
            call("plan", TINY, "--machine", str(wrong))


def test_json_has_what_the_tables_show() -> None:
    code, text = call("plan", "--like", "UD-IQ3_XXS", "--machine", FIGURES, "--vram", "24G", "--ram", "64G", "--json")
    found = json.loads(text)
    assert code == 0 and found["verdict"] == "fits"
    assert len(found["plan"]["slots"]) == 49 and 50 < found["plan"]["slots"][0] < 200
    flat = found["plan"]["speed"]["flat"]
    total = sum(term["seconds"] - term["hidden"] for term in flat["terms"])
    assert flat["tokens_per_second"] == pytest.approx(1 / total)
    assert {box["name"] for box in found["plan"]["boxes"]} == {"VRAM", "RAM", "SSD"}


def test_check_lists_every_known_model() -> None:
    code, text = call("check", "--machine", FIGURES, "--vram", "12G", "--ram", "64G", width=120)
    assert code == 0
    lines = [line for line in text.splitlines() if line.startswith(("UD-", "GSQ-"))]
    assert len(lines) == 10
    assert "fits" in next(line for line in lines if line.startswith("UD-IQ3_XXS"))
    assert "tight" in next(line for line in lines if line.startswith("UD-Q4_K_XL"))
    _, text = call("check", "--machine", FIGURES, "--gpus", "none", "--json")
    assert {row["name"]: row["verdict"] for row in json.loads(text)}["UD-Q4_K_XL"] == "fits"


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for words in (
        ("plan", "--like", "UD-IQ3_XXS", "--machine", FIGURES, "--vram", "12G", "--ram", "64G"),
        ("check", "--machine", FIGURES, "--ram", "24G", "--gpus", "none"),
    ):
        _, text = call(*words, width=width)
        assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan",), "model file, or --like NAME"),
        (("plan", TINY, "--like", "UD-IQ3_XXS"), "model file, or --like NAME"),
        (("plan", "--like", "nonsense", "--machine", FIGURES), "known are UD-IQ1_M"),
        (("plan", TINY, "--ram", "lots"), "--ram is 'lots'"),
        (("plan", TINY, "--kv-bits", "7"), "--kv-bits is 7"),
        (("plan", TINY, "--machine", TINY), "no figures of a machine"),
        (("pull", "nonsense"), "known are UD-IQ1_M"),
        (("pull", "me/model", "--to", "/no/such/folder"), "is not a folder"),
        (("probe", "/no/such/folder"), "no such file or folder"),
    ],
)
def test_errors_name_what_is_wrong(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(JubakoError, match=says.replace("(", r"\(")):
        call(*words)


def test_a_bar_is_as_long_as_its_box() -> None:
    box = Box("RAM", 100, (Part("experts", 50), Part("states", 1), Part("process", 9)))
    bar = boxes._bar(box, 100).plain
    share = bar.count(boxes.FULL) / (bar.count(boxes.FULL) + bar.count(boxes.FREE))
    assert share == pytest.approx(0.6, abs=0.03)
    over = boxes._bar(Box("RAM", 100, (Part("experts", 150),)), 100).plain
    assert boxes.FREE not in over


@pytest.mark.parametrize("command", ["probe", "plan", "check", "pull"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    code, text = call(command, "--help", width=120)
    assert code == 0 and f"Example: jubako {command}" in text


def test_a_look_ahead_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Machine.from_json(json.loads(Path(FIGURES).read_text()))
    monkeypatch.setattr(probe, "known_or_nominal", lambda place: figures)
    assert fitting.look_ahead([Path(TINY)], "cpu", Wish()) == ""
    monkeypatch.setattr(fitting, "SMALL", 0)
    line = fitting.look_ahead([Path(TINY)], "cpu", Wish(ram=40 * 10**9, gpus=()))
    assert line.startswith("Plan: RAM ") and "of 40.0 GB" in line and "tok/s" in line
    with pytest.raises(MachineError, match=r"tiny-mixed.gguf does not fit: .* none fits either"):
        fitting.look_ahead([Path(TINY)], "cpu", Wish(ram=10**8, gpus=()))


def test_the_largest_that_fits_is_named() -> None:
    figures = Machine.from_json(json.loads(Path(FIGURES).read_text()))
    assert "UD-Q4_K_XL (111 GB) would: jubako pull UD-Q4_K_XL" in fitting._what_would(figures, Wish(gpus=()))
    words = fitting._what_would(figures, Wish(gpus=(), ram=48 * 10**9))
    assert "UD-Q2_0 (70.6 GB) would: jubako pull UD-Q2_0" in words
    assert "if tightly" in fitting._what_would(figures, Wish(gpus=(), ram=24 * 10**9))


def test_nominal_figures_plan_but_promise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "free_memory", lambda: 200 * 10**9)
    monkeypatch.setattr(probe, "total_memory", lambda: 200 * 10**9)
    box = probe.nominal(machine(1).identity, tmp_path)
    assert box.measured == "" and box.kernel("Q4_K") and box.ram_free > 0
    plan = make_plan(census(), box, Wish(ram=30 * 10**9))
    assert plan.fits and plan.speed is None and judge(plan).verdict == "tight"
    assert "experts stay on the SSD" in fitting.summary(census(), plan) and "tok/s" not in fitting.summary(
        census(), plan
    )
