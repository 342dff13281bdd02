"""GPU kernels run on the GPU where there is one, else in Triton's interpreter on small arrays."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # helpers, the CPU tests' too

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def device() -> torch.device:
    return DEVICE


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261130)
