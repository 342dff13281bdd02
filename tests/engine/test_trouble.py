"""What goes wrong outside: a file cut while mapped, memory that the system refuses, a kill. Each ends, and says why."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jubako import cli

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
READ = """
import os, sys
from jubako import _cpu
from jubako.engine.model import load
_cpu.explain_cut_files()
model = load(sys.argv[1], "cpu", threads=2)
model.logits([1, 2, 3])
os.truncate(sys.argv[1], 4096)
print("cut", flush=True)
for _ in range(100):
    model.logits(list(range(200)))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=100)


@pytest.fixture
def file(tiny: Path, tmp_path: Path) -> Path:
    """A model of the test's own."""
    return Path(shutil.copy(tiny / "tiny-bf16.gguf", tmp_path / "model.gguf"))


def test_a_mapped_file_that_is_cut(file: Path) -> None:
    """The kernels read it on several threads: one line all the same."""
    done = run("-c", READ, str(file))
    assert done.stdout == "cut\n" and done.returncode == 1
    assert done.stderr.endswith(
        f"jubako: {file}: its bytes are gone: it was cut, or its disk was unplugged, while it was in use\n"
    )
    assert done.stderr.count("its bytes are gone") == 1


def test_another_bus_error_is_what_it_was(tmp_path: Path) -> None:
    """Sent by somebody, it names no file: the second one ends the process as it always did."""
    script = "import os; from jubako import _cpu; _cpu.explain_cut_files(); [os.kill(os.getpid(), 7) for _ in 'ab']"
    assert run("-c", script).returncode == -signal.SIGBUS


REFUSED = """
import resource, sys
from pathlib import Path
from jubako.arch.weights import load_network
from jubako.errors import JubakoError
from jubako.files import open_model
from jubako.place.resident import tensors_of
from jubako.place.store import ExpertStore
from jubako.place.where import Files
network = load_network(open_model(Path(sys.argv[1])))
files = Files(tensors_of(network))
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
experts, threads = lambda: ExpertStore(network, files, 1 << 30), lambda: Files(tensors_of(network))
for more, work in ((1 << 20, experts), (1 << 16, threads)):
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, resource.RLIM_INFINITY))
    try:
        work()
    except JubakoError as error:
        print(error)
"""


def test_less_memory_than_was_planned_with(file: Path) -> None:
    """The system refuses what --ram allows: for experts, then for the threads that read them."""
    done = run("-c", REFUSED, str(file))
    assert done.returncode == 0, done.stderr
    experts, threads = done.stdout.splitlines()
    assert "the system refuses" in experts and experts.endswith("of memory for experts; allow less with --ram")
    assert threads == "threads to read with: Resource temporarily unavailable"


def test_a_command_that_gets_no_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(**options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "app", refused)
    with pytest.raises(SystemExit, match="1"):
        cli.main([])
    assert capsys.readouterr().err == (
        "jubako: the system refuses more memory; allow less with --ram, or ask for a smaller --context\n"
    )
