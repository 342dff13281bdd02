"""The largest logits against a sort of all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jubako.ops.gpu.largest import LARGEST, find_largest


@pytest.mark.parametrize("count", [64, 320, 4100])
def test_the_largest_logits_are_found(device: torch.device, rng: np.random.Generator, count: int) -> None:
    """Ties go to the lowest id; rows of one number, of infinities, and that lie apart."""
    rows = rng.standard_normal((4, count)).astype(np.float32).round(2) * 9
    rows[1] = 0.5
    rows[2, rng.integers(0, count, 40)] = -np.inf
    rows[2, 30], rows[3, :] = np.inf, -np.abs(rows[3])
    wide = torch.zeros(4, count + 7, device=device)
    wide[:, :count] = torch.from_numpy(rows)
    ids = torch.zeros(4, LARGEST, dtype=torch.int32, pin_memory=device.type == "cuda")
    values = torch.zeros(4, LARGEST, pin_memory=device.type == "cuda")
    find_largest(wide[:, :count], ids, values)
    if device.type == "cuda":
        torch.cuda.synchronize()
    for row, found, logits in zip(rows, ids.numpy(), values.numpy(), strict=True):
        wanted = sorted(np.lexsort((np.arange(count), -row))[:LARGEST].tolist())
        assert sorted(found.tolist()) == wanted
        assert np.array_equal(logits, row[found])
