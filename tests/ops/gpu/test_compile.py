"""One kernel of each family compiles for one card each, with no GPU, and waits before it touches what others write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "compile_kernels.py"


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("cuda:75", "decoding IQ3_XXS"),
        ("cuda:90", "experts' sum"),
        ("cuda:90", "product, 4 columns"),
        ("cuda:90", "product and mix, 4"),
        ("cuda:90", "prompt: delta net"),
        ("cuda:90", "delta net"),
        ("cuda:90", "attention, 8 bit"),
        ("cuda:90", "drafts: between"),
        ("hip:gfx1030", "route"),
    ],
)
def test_compiles(to: str, name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(TOOL), "--targets", to, "--only", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(to) and "FAILED" not in done.stdout
