"""The commands as a shell calls them: output, exit codes, and errors without a traceback."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jubako.cli import COMMANDS, _explain, app
from jubako.cli.start import arguments
from jubako.cli.stream import _BetweenTokens
from jubako.errors import RequestError, TemplateError

TINY = Path(__file__).parents[1] / "data" / "tiny"
MODEL = str(TINY / "tiny-bf16.gguf")
FIGURES = TINY.parent / "machines" / "h200.json"


def jubako(*words: str, stdin: str = "", module: str = "jubako.cli") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_run_streams_an_answer_and_says_how_fast() -> None:
    result = jubako("run", "-m", MODEL, "-n", "12", "Hello")
    assert result.returncode == 0
    assert result.stdout.strip()
    assert "answer 12 tokens" in result.stderr and "tok/s" in result.stderr and "ms/step" in result.stderr


def test_run_writes_nothing_between_the_tokens() -> None:
    result = jubako("run", "-m", MODEL, "-n", "12", "--raw", "Hello")
    assert len([line for line in result.stderr.splitlines() if not line.strip()]) <= 1


def test_run_reads_standard_input_and_repeats_itself() -> None:
    first, second = (jubako("run", "-m", MODEL, "-n", "8", "--raw", stdin="def main():\n") for _ in range(2))
    assert first.returncode == 0
    assert first.stdout == second.stdout


def test_start_without_a_model_uses_the_small_one() -> None:
    result = jubako("-n", "4", "Hello", module="jubako.cli.start")
    assert result.returncode == 0
    assert "Jubako Small" in result.stderr
    assert "answer 4 tokens" in result.stderr


def test_what_users_type_is_what_they_are_told_to_type() -> None:
    assert "Usage: ./start" in jubako("--help", module="jubako.cli.start").stdout
    assert "Usage: jubako" in jubako("--help").stdout
    figures = Path(__file__).parents[1] / "data/machines/h200.json"
    told = jubako("check", "--ram", "4G", "--machine", str(figures), module="jubako.cli.start").stdout
    assert "Fetch one with: ./start pull NAME" in " ".join(told.split())


def test_chat_answers_keeps_history_and_resets() -> None:
    result = jubako("chat", "-m", MODEL, "-n", "5", stdin="Hello\n/history\n/think\n/reset\n/history\n/help\n/quit\n")
    assert result.returncode == 0
    assert result.stderr.count("answer 5 tokens") == 1
    assert "user: Hello" in result.stderr
    assert "thinking is on" in result.stderr
    assert "the conversation is forgotten" in result.stderr
    assert "/reset" in result.stderr


def test_chat_refuses_what_does_not_fit_and_goes_on() -> None:
    result = jubako("chat", "-m", MODEL, "--context", "30", "-n", "2", stdin="word " * 100 + "\nHi\n")
    assert result.returncode == 0
    assert "do not fit in the context of 30" in result.stderr
    assert result.stderr.count("answer 2 tokens") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "-m", "nothing-here.gguf", "x"), "nothing-here.gguf"),
        (("run", "-m", __file__, "x"), "test_commands.py"),
        (("run", "-m", MODEL, "--temperature", "-2", "x"), "temperature is -2.0"),
        (("run", "-m", MODEL, "--device", "abacus", "x"), "abacus"),
        (("inspect", "nothing-here.gguf"), "nothing-here.gguf"),
    ],
)
def test_errors_are_one_clear_line_and_exit_code_1(words: tuple[str, ...], says: str) -> None:
    result = jubako(*words)
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_usage_has_exit_code_2() -> None:
    assert jubako("run", "--no-such-option", "x").returncode == 2
    assert jubako("nonsense").returncode == 2
    assert jubako("serve", "--sessions-gb", "1e300").returncode == 2


def test_bench_on_a_gpu_is_told_of_types_and_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("jubako.cli.bench_gpu.bench_gpu", lambda *all: given.extend(all))
    words = ["bench", "--device", "cuda", "--synth", "--types", "dense=Q6_K", "--drafts", "3", "--depths", "0,16K"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert given[3] == [0, 16384] and given[-3:] == ["dense=Q6_K", 3, 0.7]


def test_bench_on_a_gpu_keeps_to_the_memory_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    words = ["bench", MODEL, "--device", "cuda", "--gpus", "1", "--vram", "12G", "--ram", "24G"]
    with monkeypatch.context() as context:
        context.setattr("jubako.cli.bench_gpu.bench_gpu", lambda *all: given.extend(all))
        assert CliRunner().invoke(app, words).exit_code == 0
    assert given[2] == ((1,), 12 * 10**9, 24 * 10**9)
    error = CliRunner().invoke(app, ["bench", "--device", "cuda", "--synth", "--ram", "24G"]).exception
    assert isinstance(error, RequestError) and "--ram is for a file" in str(error)


@pytest.mark.parametrize("options", [("--synth",), ("--types", "dense=Q6_K"), ("--profile", "trace.json")])
def test_what_a_gpu_is_needed_for_is_not_passed_over(options: tuple[str, ...]) -> None:
    error = CliRunner().invoke(app, ["bench", MODEL, *options]).exception
    assert isinstance(error, RequestError) and str(error) == f"{options[0]} is for a GPU; it needs --device cuda"


@pytest.mark.parametrize("option", ["--json", "--profile"])
def test_a_folder_that_is_not_there_is_named_before_anything_is_measured(option: str, tmp_path: Path) -> None:
    words = ["bench", MODEL, "--device", "cuda", option, str(tmp_path / "none" / "out.json")]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, RequestError) and f"there is no folder {tmp_path / 'none'}" in str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: jubako {command}" in result.output


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ([], ["serve", "--open", "--log-level", "warning"]),
        (["Why?"], ["run", "Why?"]),
        (["-m", "a.gguf"], ["serve", "--open", "--log-level", "warning", "-m", "a.gguf"]),
        (["-m", "a.gguf", "Why?"], ["run", "-m", "a.gguf", "Why?"]),
        (["--think", "Why?"], ["run", "--think", "Why?"]),
        (["-n5", "Why?"], ["run", "-n5", "Why?"]),
        (["--top-k=20", "Why?"], ["run", "--top-k=20", "Why?"]),
        (["-n5"], ["chat", "-n5"]),
        (["--think"], ["chat", "--think"]),
        (["a.gguf"], ["serve", "--open", "--log-level", "warning", "a.gguf"]),
        (
            ["--log-prompts", "-m", "a.gguf"],
            ["serve", "--open", "--log-level", "warning", "--log-prompts", "-m", "a.gguf"],
        ),
        (["inspect", "a.gguf"], ["inspect", "a.gguf"]),
        (["--help"], ["--help"]),
    ],
)
def test_what_start_means(given: list[str], means: list[str]) -> None:
    assert arguments(given) == means


def test_a_terminal_without_utf8_and_garbage_on_standard_input_are_no_errors(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(bytes(range(256)))
    with garbage.open("rb") as stdin:
        result = subprocess.run(
            [sys.executable, "-m", "jubako.cli", "run", "-m", MODEL, "-n", "40"],
            stdin=stdin,
            capture_output=True,
            timeout=120,
            env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() and b"answer 40 tokens" in result.stderr


def test_bars_in_ascii_still_show_what_is_free() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "jubako.cli", "plan", MODEL, "--machine", str(FIGURES), "--gpus", "none", "--no-terms"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0
    assert re.search(r"^RAM +#+\.+ .* of 120 GB$", result.stdout, re.M) and "* process" in result.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "jubako.cli", "run", "-m", MODEL, "-n", "2", "Hi"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert result.returncode == 1
    assert "jubako: [Errno 28]" in result.stderr and "Traceback" not in result.stderr


def test_text_of_a_file_can_not_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        _explain(TemplateError("\x1b]0;owned\x07 refused"))
    assert end.value.code == 1
    assert capsys.readouterr().err == "jubako: ?]0;owned? refused\n"


def test_an_interrupt_waits_for_the_token_at_work() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _BetweenTokens() as interrupt:
        interrupt.after_token()
        signal.raise_signal(signal.SIGINT)  # held back
        interrupt.after_token()
    with pytest.raises(KeyboardInterrupt), _BetweenTokens():
        signal.raise_signal(signal.SIGINT)  # while the prompt is read: at once
        pytest.fail("the interrupt was lost")
    assert signal.getsignal(signal.SIGINT) is before
