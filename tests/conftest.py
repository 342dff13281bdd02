"""The data all tests share: the tiny model in its forms, and what the official network says about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as transformers does
if "PYTEST_XDIST_WORKER" in os.environ:  # workers, and what they start, share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)

from jubako.files import open_model

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file
from checkpoint import write_checkpoint

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")  # the same examples in every run

DATA = Path(__file__).parent / "data"
TINY = DATA / "tiny"
SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured and learnt on this machine stays out of the tests, and theirs out of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JUBAKO_CACHE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Directory of tiny-bf16.gguf, tiny-mixed.gguf, tiny-mtp.gguf and reference.npz."""
    return TINY


@pytest.fixture(scope="session")
def golden() -> Mapping[str, np.ndarray]:
    """What the official network gives for prompts 0, 1 and 2 of the tiny model: `0.ids`, `0.logits`, `0.greedy` …"""
    with np.load(TINY / "reference.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its draft layer as a Hugging Face checkpoint directory."""
    files = open_model([TINY / "tiny-bf16.gguf", TINY / "tiny-mtp.gguf"])
    return write_checkpoint(files, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """The original golden files beside the project; skips the test where they are absent."""
    path = SHARED / "golden"
    if not path.is_dir():
        pytest.skip("the golden files are not beside this checkout")
    return path
