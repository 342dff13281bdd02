"""Pinned memory, against a runtime that knows which pages are pinned and refuses what the real one refuses."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
import torch

from jubako.errors import MachineError
from jubako.ops.gpu import pinned
from jubako.ops.gpu.pinned import Pinned, copy_of, pages, room

CUDA = torch.cuda.is_available()
PAGE = mmap.PAGESIZE
GPU = torch.device("cuda")
ALREADY, UNKNOWN = 712, 713  # cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered


class Runtime:
    """Of CUDA's runtime what pins memory. areas: pages pinned, first and last, by the address they were pinned with."""

    def __init__(self) -> None:
        self.areas: dict[int, tuple[int, int]] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        first, last = address // PAGE, (address + size - 1) // PAGE
        if any(first <= there[1] and there[0] <= last for there in self.areas.values()):
            return ALREADY
        self.areas[address] = first, last
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self.areas.pop(address, None) else UNKNOWN


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    fake = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(pinned, "forget_error", lambda: None)
    return fake


def test_memory_is_pinned_as_long_as_anybody_has_it(runtime: Runtime) -> None:
    memory = room(3 * PAGE + 5, GPU)
    assert memory.ctypes.data % PAGE == 0 and len(memory) == 3 * PAGE + 5 and not memory.any()
    rows = torch.from_numpy(memory[PAGE : 2 * PAGE].view(np.int32).reshape(4, -1))
    rows[1] = 7
    del memory
    gc.collect()
    assert len(runtime.areas) == 1 and int(rows[1, 3]) == 7
    del rows
    gc.collect()
    assert not runtime.areas


def test_pages_of_different_areas_are_different(runtime: Runtime) -> None:
    """However small they are, and whatever was given back before."""
    data = np.arange(100, dtype=np.uint8)
    kept = [copy_of(data, GPU) for _ in range(50)]
    for turn in range(200):
        kept[turn % 50] = copy_of(data, GPU)
    assert len(runtime.areas) == 50
    assert all(np.array_equal(copy, data) for copy in kept)
    kept.clear()
    gc.collect()
    assert not runtime.areas


def test_it_is_unpinned_before_its_owner_goes(runtime: Runtime) -> None:
    """And once, whoever closes it."""
    gone: list[int] = []

    class Owner:
        def __init__(self) -> None:
            self.memory = pages(PAGE)

        def __del__(self) -> None:
            gone.append(len(runtime.areas))

    owner = Owner()
    first = Pinned(owner.memory.ctypes.data, PAGE, owner)
    del owner
    gc.collect()
    assert not gone
    first.close()
    first.close()
    assert gone == [0]


def test_what_the_system_refuses(runtime: Runtime) -> None:
    memory = room(2 * PAGE, GPU)
    with pytest.raises(MachineError, match=r"0\.00 GB .* not be pinned \(CUDA error 712\); allow less RAM"):
        Pinned(memory.ctypes.data + PAGE, PAGE, memory)
    assert len(runtime.areas) == 1


def test_without_a_gpu_nothing_is_pinned(runtime: Runtime) -> None:
    copy = copy_of(np.arange(12, dtype=np.int16).reshape(3, 4), torch.device("cpu"))
    assert copy.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and not runtime.areas


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_a_refusal_is_told_once() -> None:
    """What is launched after it goes well, and so does pinning where something was pinned before."""
    memory = room(4 * PAGE, GPU)
    with pytest.raises(MachineError, match="could not be pinned"):
        Pinned(memory.ctypes.data, PAGE, memory)
    assert int(torch.full((3,), 2, device=GPU).sum()) == 6
    plain = pages(4 * PAGE)
    for _ in range(3):
        once = Pinned(plain.ctypes.data, plain.nbytes, plain)
        there = torch.from_numpy(np.asarray(once))
        there.fill_(3)
        assert int(there.to(GPU, non_blocking=True).sum()) == 3 * 4 * PAGE
        del there
        once.close()
