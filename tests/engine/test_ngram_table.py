"""The n-gram table in memory, once for all cards, or left in its file: the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from jubako.arch.tensor import Tensor
from jubako.arch.weights import Network, load_network
from jubako.engine.gpu import ngram_table
from jubako.engine.gpu.ngram_table import SMALL, TablePlace, share_of_memory
from jubako.files import open_model
from jubako.ops.gpu.far_table import FarTable
from jubako.ops.gpu.table import HostTable, rows_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def network(tiny: Path) -> Network:
    return load_network(open_model([tiny / "tiny-mixed.gguf"]))


@pytest.fixture(scope="module")
def table(network: Network) -> Tensor:
    [found] = [layer.ngram.table for layer in network.layers if layer.ngram is not None]
    return found


def test_a_table_that_is_too_large_for_memory_stays_in_its_file(network: Network, table: Tensor) -> None:
    ids = torch.tensor([0, 7, table.shape[0] - 1], device=DEVICE)
    near, far = (TablePlace(network, table.nbytes - less)(table, DEVICE) for less in (0, 1))
    assert isinstance(near, HostTable) and isinstance(far, FarTable)
    wanted = torch.from_numpy(table.float32().numpy()[ids.cpu()]).to(DEVICE)
    assert torch.equal(rows_of(near, ids), wanted) and torch.equal(far.of_prompt(ids), wanted)


def test_cards_share_one_copy(network: Network, table: Tensor) -> None:
    place, other = TablePlace(network, table.nbytes), torch.device("meta")
    one, two = place(table, DEVICE), place(table, other)
    assert isinstance(one, HostTable) and isinstance(two, HostTable)
    assert one.data.data_ptr() == two.data.data_ptr() != table.data.ctypes.data and two.device == other


def test_a_table_made_in_memory_has_no_file_to_stay_in(network: Network, table: Tensor) -> None:
    made = replace(table, data=np.array(table.data))
    assert isinstance(TablePlace(network, 0)(made, DEVICE), HostTable)


def test_it_takes_half_of_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, share in ((64 << 30, 32 << 30), (1 << 28, SMALL)):
        monkeypatch.setattr(ngram_table, "usable_memory", lambda free=free: free)
        assert share_of_memory() == share
