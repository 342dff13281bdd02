"""Keys and values in main memory: pages keep what they hold wherever it lies, and attention gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sizes import config
from test_attention import LONG, RATIO, case

from jubako.ops.gpu import attention_prompt
from jubako.ops.gpu.homes import _runs
from jubako.ops.gpu.sequence import GpuState
from jubako.ops.gpu.state import PAGE, AttentionMemory, StatePool

CUDA = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """The interpreter takes a millisecond a program."""
    if device.type == "cpu":
        monkeypatch.setattr("jubako.ops.gpu.attention.SPLITS", 4)


def pool(device: torch.device, near: int) -> StatePool:
    return StatePool(config(layers=3), [None, 4, None, 4], 3, 40 * PAGE, 20 * PAGE, 8, device, near=near * PAGE)


def check(memory: StatePool, states: list[GpuState], wanted: dict[int, np.ndarray]) -> None:
    """Every page holds what was written to it; the tables of all states find it."""
    homes = memory.homes
    assert homes is not None
    held = list(wanted)
    assert np.array_equal(memory.read(held), np.stack([wanted[page] for page in held]))
    assert sorted(homes.of(range(memory.page_count + 1))) == list(range(memory.page_count + 1))
    for state in states:
        ids = state.pages.ids
        assert memory.table[state.slot, : len(ids)].tolist() == ids
        assert homes.table[state.slot, : len(ids)].tolist() == homes.of(ids)


@pytest.mark.parametrize("near", [1, 5, 39])
def test_pages_keep_what_they_hold(rng: np.random.Generator, device: torch.device, near: int) -> None:
    """Sequences grow, begin like others, end; more pages than video memory has room for."""
    memory = pool(device, near)
    wanted: dict[int, np.ndarray] = {}
    states = [GpuState(memory, 20 * PAGE) for _ in range(3)]
    for _ in range(40):
        state = states[rng.integers(3)]
        other = states[rng.integers(3)]
        if rng.random() < 0.15 or len(state.pages.ids) > 12:
            state.reset()
            if rng.random() < 0.5:
                state.pages.share(other.pages.ids[:4])
                state.position = state.draft_position = len(state.pages.ids) * PAGE - int(bool(state.pages.ids))
        end = state.position + int(rng.integers(1, 3 * PAGE))
        before = {page: wanted[page] for page in state.pages.ids[: state.position // PAGE]}
        state.reserve(end)
        assert all(page in state.pages.ids for page in before)
        state.position = state.draft_position = end
        fresh = state.pages.ids[len(before) :]
        data = rng.integers(0, 255, (len(fresh), memory.page_bytes), dtype=np.uint8)
        memory.write(fresh, data)
        wanted |= zip(fresh, data, strict=True)
        wanted = {page: wanted[page] for page in {p for s in states for p in s.pages.ids}}
        check(memory, states, wanted)


def test_the_newest_pages_lie_in_video_memory(device: torch.device) -> None:
    memory = pool(device, 5)
    first, second = GpuState(memory, 20 * PAGE), GpuState(memory, 20 * PAGE)
    assert memory.homes is not None
    first.reserve(9 * PAGE)
    near = memory.homes.pages.near
    assert [home < near for home in memory.homes.of(first.pages.ids)] == [False] * 4 + [True] * 5
    second.reserve(2 * PAGE)
    assert [home < near for home in memory.homes.of(first.pages.ids)] == [False] * 6 + [True] * 3
    second.close()
    first.position = first.draft_position = 9 * PAGE
    first.reserve(11 * PAGE)
    assert [home < near for home in memory.homes.of(first.pages.ids)] == [False] * 6 + [True] * 5
    assert memory.homes.runs(first.slot) == [(0, 6)]
    alone = memory.read(first.pages.ids[:2])
    memory.copy(first.pages.ids[1], first.pages.ids[0])
    assert np.array_equal(memory.read(first.pages.ids[:2]), alone[[1, 1]])
    assert memory.bytes_in_ram(5) == 0 and memory.bytes_in_ram(16) == 10 * memory.homes.host_bytes // 35  # 0 is counted
    assert memory.homes.host_bytes == (40 - 5) * 2 * (2 * 2 * PAGE) * (
        64 + 2 * 4
    )  # two layers, rows of 64 codes, 2 scales


def test_stretches() -> None:
    assert list(_runs([])) == []
    assert list(_runs([3, 4, 5, 9, 11, 12])) == [(3, 6), (9, 10), (11, 13)]


@pytest.mark.parametrize(("bits", "gathered"), [(8, False), (8, True), *([(16, True)] if CUDA else [])])
def test_attention_gives_the_same_bits(
    rng: np.random.Generator, device: torch.device, bits: int, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, steps, short and long pieces of a prompt, with all cells in video memory and with one page there."""
    end = LONG + 14
    one = case(rng, device, end, bits)
    read = []
    for near in (end + PAGE, PAGE):
        memory = StatePool(one.sizes, [RATIO], 2, end + PAGE, end, bits, device, near=near)
        [layer] = memory.layers
        assert isinstance(layer, AttentionMemory) and (layer.far is not None) == (near == PAGE)
        mine, state, parts = replace(one, memory=layer), GpuState(memory, end), []
        for start, stop, step in ((0, LONG, 0), (LONG, LONG + 5, 1), (LONG + 5, LONG + 7, 0), (LONG + 7, end, 0)):
            now = gathered and (CUDA or start > 0)  # the first piece takes the interpreter long
            monkeypatch.setattr(attention_prompt, "DENSE", 0 if now else 1 << 20)
            state.reserve(stop)
            run = mine.step if step else mine.prompt
            parts.append(run(state.slot, start, list(range(start, stop))))
            state.position = stop
        read.append(parts)
        assert memory.homes is None or memory.homes.runs(state.slot)
    assert all(torch.equal(a, b) for a, b in zip(*read, strict=True))
