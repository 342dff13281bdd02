"""Rows of a table in host memory, and a whole network made ready."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from block_rows import rows_of

from jubako.arch.tensor import Tensor
from jubako.errors import MachineError
from jubako.ops.gpu.embed import embed
from jubako.ops.gpu.table import TYPES, HostTable
from jubako.quant import BY_NAME, decode


def table(name: str, device: torch.device, cols: int = 160) -> tuple[HostTable, np.ndarray]:
    raw = rows_of(name, (9,), cols)
    return HostTable.of(Tensor("table", BY_NAME[name], (9, cols), raw, Path(), 0), device), decode(name, raw)


@pytest.mark.parametrize("name", TYPES)
def test_rows(name: str, device: torch.device) -> None:
    held, numbers = table(name, device)
    got = embed(held, torch.tensor([8, 0, 8, 5], device=device))
    assert np.array_equal(got.cpu().numpy(), numbers[[8, 0, 8, 5]])


def test_other_types_are_refused(device: torch.device) -> None:
    with pytest.raises(MachineError, match="table is Q4_K; a table in host memory must be one of"):
        table("Q4_K", device, 256)
