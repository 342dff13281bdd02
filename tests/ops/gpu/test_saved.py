"""The GPU's pool: pages that are shared, and states that are saved and resumed. Plain tensors, no kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from sizes import config

from jubako.ops.gpu.saved import resume, save
from jubako.ops.gpu.sequence import GpuState
from jubako.ops.gpu.state import StatePool

PAGE = 64


def pool(kv_bits: int = 8, drafts: int = 1) -> StatePool:
    """Two GDN layers, one attention layer, a draft layer; the memory holds noise."""
    ratios: list[int | None] = [None, None, 4, *([4] * drafts)]
    made = StatePool(config(layers=3), ratios, 3, 1024, 512, kv_bits, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for part in (paged.near for paged in made._paged):
        part.copy_(torch.randint(-100, 100, part.shape, generator=generator).to(part.dtype))
    for slot in range(3):
        fill(made, slot, generator)
    return made


def fill(pool: StatePool, slot: int, generator: torch.Generator) -> None:
    for part in pool.fixed_parts(slot):
        part.copy_(torch.randn(part.shape, generator=generator))


@pytest.mark.parametrize("kv_bits", [8, 16])
def test_pages_can_be_read_written_and_copied(kv_bits: int) -> None:
    memory = pool(kv_bits)
    data = memory.read([3, 5])
    assert data.shape == (2, memory.page_bytes) and not np.array_equal(data[0], data[1])
    memory.write([7, 8], data[::-1].copy())
    memory.copy(3, 9)
    assert np.array_equal(memory.read([8, 7, 9]), data[[0, 1, 0]])


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_resumed_slot_is_what_was_saved(drafts: int) -> None:
    memory = pool(drafts=drafts)
    first, second = GpuState(memory, 512), GpuState(memory, 512)
    fill(memory, first.slot, torch.Generator().manual_seed(2))
    first.reserve(150)
    first.read(150)
    first.draft_position, first.carried = (149, [7]) if drafts else (0, [])
    want = [part.clone() for part in memory.fixed_parts(first.slot)]
    state = save(first)
    assert len(state.fixed) == first.fixed_bytes == second.fixed_bytes
    pages = list(first.pages.ids)
    fill(memory, first.slot, torch.Generator().manual_seed(3))
    assert first.lacks(151) == 1
    first.reserve(151)
    assert first.pages.ids[:2] == pages[:2] and first.pages.ids[2] != pages[2], "a shared page is copied, then written"
    assert np.array_equal(memory.read(first.pages.ids), memory.read(pages))
    assert memory.table[first.slot, :3].tolist() == first.pages.ids

    ids = np.arange(150, dtype=np.int32)
    resume(second, state, ids)
    assert all(torch.equal(a, b) for a, b in zip(memory.fixed_parts(second.slot), want, strict=True))
    assert memory.table[second.slot, :3].tolist() == pages
    assert memory.tokens[second.slot, :150].tolist() == ids.tolist()
    assert (second.position, second.draft_position, second.carried) == (150, 149 * drafts, [149] * drafts)
    free = memory.pages.free
    for one in (first, second):
        one.close()
    memory.pages.release(state.pages)
    assert memory.pages.free == memory.page_count > free


def test_a_reset_slot_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pool()
    state = GpuState(memory, 512)
    state.reserve(100)
    state.read(100)
    state.reset()
    assert (state.position, state.pages.ids, state.carried) == (0, [], [])
    assert memory.pages.free == memory.page_count
    assert not memory.layers[0].memory[state.slot].any()  # type: ignore[union-attr]
