"""Tensors on their way to the GPU: all bytes, in their order, whatever their size and however they lie in the file."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from jubako.arch.tensor import Tensor
from jubako.engine.gpu import load
from jubako.engine.gpu.load import FileSource
from jubako.files.mapping import map_file
from jubako.quant.types import block_type

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tensor(rows: int, columns: int) -> Tensor:
    data = np.random.default_rng(rows).integers(0, 256, (rows, columns // 32 * 34), np.uint8)
    return Tensor("some", block_type("Q8_0"), (rows, columns), data, Path("nowhere"), 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_all_bytes_arrive(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(load, "PIECE", 1000)  # many pieces, more than there is room for at once
    source = FileSource(DEVICE, threads)
    wanted = [tensor(rows, 64) for rows in (1, 14, 15, 300, 77)]
    wanted += [wanted[3].row_range(20, 60), wanted[4].column_range(32, 64)]
    got = [source(one) for one in wanted]
    source.close()
    for one, blocks in zip(wanted, got, strict=True):
        assert np.array_equal(blocks.cpu().numpy(), one.data)


def test_what_was_sent_is_no_longer_in_memory(tmp_path: Path) -> None:
    """A map's pages count as the process's until they are let go; the bytes can be read again."""
    file = tmp_path / "weights"
    content = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)
    file.write_bytes(content.tobytes())
    _, mapped = map_file(file)
    data = mapped[4096 + 34 :][: 34 * 1_900_000].reshape(1000, 1900 * 34)

    def held() -> int:
        """Bytes of mapped files in this process's memory."""
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile"))

    source, before = FileSource(DEVICE, 2), held()
    got = source(Tensor("some", block_type("Q8_0"), (1000, 1900 * 32), data, file, 0))
    assert held() - before < 8 << 20
    assert np.array_equal(got.cpu().numpy(), data) and held() - before > 32 << 20
    source.close()


def test_a_thread_that_is_held_up_keeps_its_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go round all of the pinned memory meanwhile."""
    copy, calls = np.copyto, count()

    def held_up(target: np.ndarray, source: np.ndarray) -> None:
        copy(target, source)
        time.sleep(0.05 if next(calls) % 40 == 0 else 0)

    monkeypatch.setattr(load, "PIECE", 100)
    monkeypatch.setattr(np, "copyto", held_up)
    source, one = FileSource(DEVICE, 3), tensor(200, 64)
    assert np.array_equal(source(one).cpu().numpy(), one.data)
    source.close()


def test_a_network_that_is_loaded_so_is_the_same(tiny: Path) -> None:
    from jubako.arch.weights import load_network
    from jubako.files import open_model
    from jubako.ops.gpu.weights import prepare

    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    source = FileSource(DEVICE)
    mine, theirs = prepare(network, DEVICE, source), prepare(network, DEVICE)
    source.close()
    assert torch.equal(mine.output.data, theirs.output.data)
    for a, b in zip(mine.layers, theirs.layers, strict=True):
        assert torch.equal(a.hc_attn.norm, b.hc_attn.norm)
        for one, other in zip(a.experts.routed.matrices(3), b.experts.routed.matrices(3), strict=True):
            assert torch.equal(one.data[: one.nbytes], other.data[: one.nbytes])
