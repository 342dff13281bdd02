"""Rows of a table on the disk: those of the table in memory, asked for by steps and by prompts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from block_rows import rows_of as random_rows

from jubako import _cpu
from jubako.arch.tensor import Tensor
from jubako.errors import MachineError
from jubako.ops.gpu.far_table import FarTable
from jubako.ops.gpu.table import HostTable, rows_of
from jubako.quant import BY_NAME

ROWS, HEADS = 300, 4


def tables(folder: Path, device: torch.device, name: str = "Q8_0") -> tuple[FarTable, HostTable, Path]:
    """One table in a file, from an odd place on, and in memory."""
    raw = random_rows(name, (ROWS,), 64)
    path = folder / "table.bin"
    path.write_bytes(b"head" * 9 + raw.tobytes())
    tensor = Tensor("table", BY_NAME[name], (ROWS, 64), raw, path, 36)
    stored = _cpu.RowTable(_cpu.Reader([str(path)], 3), 0, 36, raw.shape[1], ROWS)
    return FarTable(tensor, stored, HEADS, device), HostTable.of(tensor, device), path


@pytest.mark.parametrize("name", ["Q8_0", "IQ4_NL"])
def test_rows_of_steps(name: str, tmp_path: Path, device: torch.device) -> None:
    far, near, _ = tables(tmp_path, device, name)
    with far.awake():
        for tokens in (1, 16, 3):
            ids = torch.randint(ROWS, (tokens * HEADS,), generator=torch.Generator().manual_seed(tokens)).to(device)
            far.ask(ids)
            assert torch.equal(far.take(len(ids)), rows_of(near, ids))


def test_rows_of_prompts(tmp_path: Path, device: torch.device) -> None:
    far, near, _ = tables(tmp_path, device)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, ROWS, 80)).to(device)
    assert torch.equal(far.of_prompt(ids), rows_of(near, ids))


def test_a_table_cut_while_in_use(tmp_path: Path, device: torch.device) -> None:
    far, _, path = tables(tmp_path, device)
    os.truncate(path, 4096)
    late = torch.full((HEADS,), ROWS - 1, device=device)
    with pytest.raises(MachineError, match=r"table\.bin: reading 68 bytes at .* the file ends after 4,096 bytes"):
        far.of_prompt(late)
    with pytest.raises(MachineError, match="the file ends after 4,096 bytes"), far.awake():
        far.ask(late)
        far.take(HEADS).cpu()  # steps are waited for


def test_types_without_kernels_are_refused(tmp_path: Path, device: torch.device) -> None:
    with pytest.raises(MachineError, match="Q6_K; a table on the disk must be one of"):
        tensor = Tensor("table", BY_NAME["Q6_K"], (1, 256), np.zeros((1, 210), np.uint8), tmp_path, 0)
        path = tmp_path / "any"
        path.write_bytes(b"x" * 5000)
        FarTable(tensor, _cpu.RowTable(_cpu.Reader([str(path)], 1), 0, 0, 210, 1), 1, device)
