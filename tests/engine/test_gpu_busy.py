"""Steps while others keep the link to main memory busy: their tables come late, and nothing may start before them."""

from __future__ import annotations

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
from jubako.files import open_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's link")
CONTEXT = 256
STEPS = 24
PROGRAMS, PIECE, TURNS = 96, 8192, 48  # programs, the numbers each reads at once, how often before it starts again


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
    """Inside, main memory answers late: half a second of reads are on their way, on a stream of their own."""
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


def test_a_table_is_taken_before_it_is_read(tiny: Path) -> None:
    """Refused columns make each step's table another one than the step before has left."""
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    executor = GpuExecutor(network, torch.device("cuda"), kv_bits=16, context=CONTEXT, sequences=1)
    quiet = continued(executor)
    with busy_link():
        busy = continued(executor)
    assert np.array_equal(busy, quiet), f"from step {np.argmax((busy != quiet).any(axis=(1, 2)))} on"
