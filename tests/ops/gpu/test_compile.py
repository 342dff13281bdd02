"""One kernel of each family compiles for one card each, with no GPU, and waits before it touches what others write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "compile_kernels.py"


@pytest.mark.parametrize(
    ("to", "names"),
    [
        ("cuda:75", ["decoding IQ3_XXS"]),
        (
            "cuda:90",
            [
                "experts' sum", "product, 4 columns", "product and mix, 4", "prompt: delta net", "delta net",
                "attention, 8 bit", "drafts: between", "product of Q4_K, 1", "product of few rows of Q4_K, 1",
                "gate and up, 1",
            ],
        ),
        ("hip:gfx1030", ["route"]),
    ],
)  # fmt: skip
def test_compiles(to: str, names: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(TOOL), "--targets", to, "--only", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith(to) and "FAILED" not in line for line in lines)
    assert all(any(name in line for line in lines) for name in names)
