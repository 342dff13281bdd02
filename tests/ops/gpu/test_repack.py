"""One pass from blocks to planes gives what `planar.repack` gives, wherever matrices lie."""

from __future__ import annotations

import pytest
import torch
from block_rows import TYPES, rows_of

from jubako.ops.gpu import planar, repack
from jubako.quant import BY_NAME


@pytest.mark.parametrize("name", TYPES)
def test_same_planes(name: str, device: torch.device) -> None:
    """Matrices that lie apart, in the file's layout and in slots; more than one program, the last one not full."""
    kind, rows, cols = BY_NAME[name], 5, 1792
    raw = torch.from_numpy(rows_of(name, (3, rows), cols))
    size = planar.LAYOUTS[name].matrix_bytes(rows, cols)
    apart = torch.zeros(3, raw[0].numel() + 64, dtype=torch.uint8)
    apart[:, 32 : 32 + raw[0].numel()] = raw.reshape(3, -1)
    lying = apart.to(device)[:, 32 : 32 + raw[0].numel()].view(3, rows, -1)
    slots = torch.full((3, size + 512), 7, dtype=torch.uint8, device=device)
    repack.repack_into(kind, lying, slots[:, 256 : 256 + size])
    used = rows * planar.LAYOUTS[name].row_bytes(cols)
    assert torch.equal(slots[:, 256 : 256 + used], planar.repack(kind, raw.to(device))[:, :used])
    assert bool((slots[:, :256] == 7).all()) and bool((slots[:, 256 + size :] == 7).all())


def test_types_of_experts_take_one_pass() -> None:
    assert {"IQ3_XXS", "IQ4_NL", "Q4_K", "IQ2_S", "IQ3_S"} <= set(repack.TYPES) <= set(planar.LAYOUTS)


def test_codebooks_stay_where_graphs_know_them(device: torch.device) -> None:
    grid = repack.grid_of("IQ3_XXS", device)
    for number in range(100):
        repack.grid_of(f"of another card, {number}", device)
    assert repack.grid_of("IQ3_XXS", device) is grid
