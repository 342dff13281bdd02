"""Random sizes, arrays and comparisons for the kernel tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from jubako.arch.config import Config


def config(**changes: Any) -> Config:
    """A small network's sizes; a test changes those it is about."""
    sizes: dict[str, Any] = {
        "name": "test",
        "vocabulary": 97,
        "hidden": 64,
        "layers": 2,
        "draft_layers": 0,
        "context_length": 4096,
        "eps": 1e-6,
        "recurrent": (True, False),
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 64,
        "rope_dims": 16,
        "rope_base": 1e7,
        "rope_sections": (3, 3, 2),
        "rope_scaling": None,
        "compress_ratios": (0, 4),
        "index_heads": 4,
        "index_dim": 32,
        "index_budget": 64,
        "conv_kernel": 4,
        "gdn_key_heads": 2,
        "gdn_value_heads": 6,
        "gdn_dim": 32,
        "experts": 12,
        "experts_used": 3,
        "expert_size": 64,
        "shared_expert_size": 64,
        "streams": 4,
        "hyper_rank": 32,
        "ngram": None,
    }
    return Config(**{**sizes, **changes})


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Gaussian float32."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def twin(array: np.ndarray) -> torch.Tensor:
    """The same numbers for the reference; a copy, as references work in place."""
    return torch.from_numpy(array.copy())


def assert_near(actual: np.ndarray, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    """No element differs by more than `tolerance` of the largest expected magnitude."""
    wanted = expected.numpy()
    assert actual.shape == wanted.shape
    largest = max(float(np.abs(wanted).max(initial=0.0)), 1e-30)
    assert np.isfinite(actual).all()
    assert float(np.abs(actual - wanted).max(initial=0.0)) <= tolerance * largest


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def pieces(tokens: int, chunk: int) -> Iterator[slice]:
    """`tokens` cut into chunks."""
    return (slice(start, min(start + chunk, tokens)) for start in range(0, tokens, chunk))


def by_chunks(tokens: int, chunk: int, step: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Results of `step` on each chunk, put together."""
    return np.concatenate([step(part) for part in pieces(tokens, chunk)])
