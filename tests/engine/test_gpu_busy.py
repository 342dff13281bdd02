"""Steps whose tables come late, as others keep the link busy or pages have to move: nothing may start before them.

Refused columns make each step's table another one than the step before has left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from jubako.arch.weights import load_network
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.gpu.graph import Desk
from jubako.files import open_model
from jubako.ops.gpu.columns import ROWS
from jubako.ops.gpu.launch import COLUMNS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's link")
CONTEXT = 256
STEPS = 24
PROGRAMS, PIECE, TURNS = 96, 8192, 48  # programs, the numbers each reads at once, how often before it starts again
CONCURRENT_MANAGED_ACCESS, ATTACH_GLOBAL = 89, 1  # of the driver: an attribute of devices, a kind of memory


@triton.jit
def read_kernel(source, sums, count, rounds, PIECE: tl.constexpr):
    """Sums over numbers in main memory, which the programs read by turns."""
    i = tl.arange(0, PIECE)
    total = tl.zeros([PIECE], tl.int32)
    for turn in range(0, rounds):
        first = (turn * tl.num_programs(0) + tl.program_id(0)) * PIECE % count
        total += tl.load(source + first + i)
    tl.store(sums + tl.program_id(0), tl.sum(total))


@contextmanager
def busy_link() -> Iterator[None]:
    """Inside, half a second of reads of main memory are on their way, on a stream of their own."""
    numbers = torch.ones(PROGRAMS * PIECE * TURNS, dtype=torch.int32, pin_memory=True)
    sums = torch.zeros(PROGRAMS, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for rounds in (1, *[13 * TURNS] * 12):  # the first one compiles
            read_kernel[(PROGRAMS,)](numbers, sums, numbers.numel(), rounds, PIECE=PIECE, num_warps=8)
    try:
        yield
        assert not stream.query(), "the link was not busy to the end"
    finally:
        stream.synchronize()


@contextmanager
def moving(desk: Desk) -> Iterator[None]:
    """Inside, the desk's tables lie in pages that move to the device when a step takes one, and back when the host
    writes: the device waits for tens of microseconds each time. Before anything is captured."""
    driver, supported = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(supported), CONCURRENT_MANAGED_ACCESS, desk.device.index or 0)
    if not supported.value:
        pytest.skip("pages don't move by themselves here")
    shape, place = (2, ROWS + 1, COLUMNS), ctypes.c_uint64()
    assert driver.cuMemAllocManaged(ctypes.byref(place), ctypes.c_size_t(4 * int(np.prod(shape))), ATTACH_GLOBAL) == 0
    numbers = (ctypes.c_int32 * int(np.prod(shape))).from_address(place.value)
    tables = torch.from_numpy(np.ctypeslib.as_array(numbers).reshape(shape))
    tables.zero_()
    desk._tables, desk.written, desk.caught_up = tables, tables[0], tables[1, :ROWS]
    desk._written, desk._number = tables[:, :ROWS].numpy(), tables[0, ROWS].numpy()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        driver.cuMemFree_v2(place)


def opened(tiny: Path) -> GpuExecutor:
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    return GpuExecutor(network, torch.device("cuda"), kv_bits=16, context=CONTEXT, sequences=1)


def continued(executor: GpuExecutor) -> np.ndarray:
    """Logits [STEPS, 3, vocabulary] of steps of three columns, of which the first is kept and says what comes next."""
    state = executor.new_state(CONTEXT)
    token, found = 7, []
    for _ in range(STEPS):
        [logits] = executor.step([([token, 5, 6], state)])
        state.keep(1)
        found.append(np.array(logits))
        token = logits[0].likeliest
    state.close()
    return np.stack(found)


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    wrong = (found != wanted).any(axis=(1, 2))
    assert not wrong.any(), f"{wrong.sum()} of {STEPS} steps, from step {wrong.argmax()} on"


@pytest.fixture(scope="module")
def quiet(tiny: Path) -> tuple[GpuExecutor, np.ndarray]:
    executor = opened(tiny)
    return executor, continued(executor)


def test_tables_of_a_busy_link(quiet: tuple[GpuExecutor, np.ndarray]) -> None:
    executor, wanted = quiet
    with busy_link():
        found = continued(executor)
    agree(found, wanted)


def test_tables_in_pages_that_move(quiet: tuple[GpuExecutor, np.ndarray], tiny: Path) -> None:
    executor = opened(tiny)
    with moving(executor.desk):
        found = continued(executor)
    agree(found, quiet[1])
