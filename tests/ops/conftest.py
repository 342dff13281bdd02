"""Every kernel test runs on each instruction set this processor has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jubako import _cpu

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Leaves the instruction set and the threads as they were."""
    isa, threads = _cpu.isa(), _cpu.threads()
    yield
    _cpu.set_isa(isa)
    _cpu.set_threads(threads)


@pytest.fixture(params=["avx2", "avx512"])
def isa(settings: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels of one level for the length of a test; `settings` puts the level back."""
    if not _cpu.isa_supported(request.param):
        pytest.skip(f"this processor has no {request.param}")
    _cpu.set_isa(request.param)
    yield request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261129)
