"""What the processor's kernels reach on each block type: the real ones, on experts of a size that no cache holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...quant import BlockType, block_type
from ..machine import Kernel

POOL = 768 << 20  # bytes of weights that the timed calls walk over, beyond the caches of a desktop processor
SMALL_POOL = 512 << 20  # the least that holds enough experts of every type
HIDDEN, SIZE, USED = 2560, 768, 10  # of an expert: near the network's (2560, 640, 10) and whole blocks of 256 both ways
ROWS = 10240  # of a dense matrix
PROMPT, PROMPT_EXPERTS = 128, 16
BUDGET = 0.06  # seconds of repeating one measurement
TYPES = (
    "IQ3_XXS", "IQ4_NL", "Q8_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_S", "IQ4_XS", "Q2_0", "Q2_K",
    "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q5_0", "Q5_1", "MXFP4", "NVFP4", "BF16", "F32",
)  # fmt: skip
REFERENCE = "IQ3_XXS"  # the type that is measured on every number of threads


def pool(size: int = POOL) -> NDArray[np.uint8]:
    """Bytes that are sane blocks of every type: as scales they are neither tiny nor huge."""
    piece = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8) & 0x1F | 0x20
    return np.resize(piece, size)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 … and all of them."""
    counts = [1 << i for i in range(cores.bit_length()) if 1 << i < cores]
    return [*counts, cores]


@contextmanager
def running_on(threads: int) -> Iterator[None]:
    """Let the kernels run on so many threads for a while."""
    import jubako._cpu as _cpu

    before = _cpu.threads()
    _cpu.set_threads(threads)
    try:
        yield
    finally:
        _cpu.set_threads(before)


class Experts:
    """Experts of one block type all over a pool of bytes, walked in turn as decoding walks them: never twice the same
    before the pool is through."""

    def __init__(self, kind: BlockType, bytes: NDArray[np.uint8]) -> None:
        import jubako._cpu as _cpu

        up, down = SIZE * kind.row_bytes(HIDDEN), HIDDEN * kind.row_bytes(SIZE)
        self.expert_bytes = 2 * up + down
        self.count = len(bytes) // self.expert_bytes // USED * USED
        assert self.count >= PROMPT_EXPERTS
        ends = np.cumsum([self.count * size for size in (up, up, down)]).tolist()
        gate_up, downs = (self.count, SIZE, up // SIZE), (self.count, HIDDEN, down // HIDDEN)
        gates = _cpu.Weight(bytes[: ends[0]].reshape(gate_up), kind.id)
        ups = _cpu.Weight(bytes[ends[0] : ends[1]].reshape(gate_up), kind.id)
        self._run = partial(_cpu.experts, gates, ups, _cpu.Weight(bytes[ends[1] : ends[2]].reshape(downs), kind.id))
        self._x = np.random.default_rng(1).standard_normal((PROMPT, HIDDEN), dtype=np.float32)
        self._shares = np.full((PROMPT, USED), 1 / USED, np.float32)
        self._next = 0

    def step(self) -> int:
        """One token's experts; the bytes of them."""
        ids = np.arange(self._next, self._next + USED, dtype=np.int32)[None]
        self._next = (self._next + USED) % self.count
        self._run(self._x[:1], ids, self._shares[:1])
        return USED * self.expert_bytes

    def prompt(self) -> int:
        """A prompt of PROMPT tokens over few experts; its multiply-adds."""
        spread = np.argsort(np.random.default_rng(2).random((PROMPT, PROMPT_EXPERTS)), axis=1)
        self._run(self._x, spread[:, :USED].astype(np.int32), self._shares)
        return PROMPT * USED * 3 * SIZE * HIDDEN


class Dense:
    """Dense matrices of one block type all over a pool of bytes."""

    def __init__(self, kind: BlockType, bytes: NDArray[np.uint8]) -> None:
        import jubako._cpu as _cpu

        self._run = _cpu.linear
        size = ROWS * kind.row_bytes(HIDDEN)
        count = len(bytes) // size
        self._weights = [_cpu.Weight(bytes[i * size : (i + 1) * size].reshape(ROWS, -1), kind.id) for i in range(count)]
        self._size = size
        self._x = np.random.default_rng(1).standard_normal((PROMPT, HIDDEN), dtype=np.float32)
        self._next = 0

    def step(self) -> int:
        """One product with one token; the bytes read."""
        self._run(self._weights[self._next], self._x[:1])
        self._next = (self._next + 1) % len(self._weights)
        return self._size

    def prompt(self) -> int:
        """One product with PROMPT tokens; its multiply-adds."""
        self._run(self._weights[0], self._x)
        return PROMPT * ROWS * HIDDEN


def rate(work: Callable[[], int], budget: float = BUDGET) -> float:
    """What `work` returns, per second: the best of the tries that fit in the budget, three at least, unless these take
    ten times as long."""
    work()
    best, spent, tries = 0.0, 0.0, 0
    while tries < 3 or spent < budget:
        started = time.perf_counter()
        done = work()
        seconds = time.perf_counter() - started
        best, spent, tries = max(best, done / seconds), spent + seconds, tries + 1
        if spent > 10 * budget:
            break
    return best


def kernel(kind: str, bytes: NDArray[np.uint8], cores: int) -> Kernel:
    """The rates of one block type; of REFERENCE on several numbers of threads, of others on all cores."""
    experts, dense = Experts(block_type(kind), bytes), Dense(block_type(kind), bytes)
    by_threads = {}
    for threads in thread_counts(cores) if kind == REFERENCE else [cores]:
        with running_on(threads):
            by_threads[threads] = rate(experts.step)
    with running_on(cores):
        return Kernel(by_threads, rate(dense.step), rate(experts.prompt), rate(dense.prompt))


def read_rates(bytes: NDArray[np.uint8], cores: int) -> dict[int, float]:
    """Bytes/s of reading memory in order, by threads."""
    import jubako._cpu as _cpu

    def read() -> int:
        _cpu.read_all(bytes)
        return len(bytes)

    rates = {}
    for threads in thread_counts(cores):
        with running_on(threads):
            rates[threads] = rate(read, 0.1)
    return rates


def call_seconds() -> float:
    """One call of a kernel that has next to nothing to do."""
    import jubako._cpu as _cpu

    kind = block_type("Q8_0")
    weight = _cpu.Weight(np.full((32, kind.row_bytes(32)), 0x21, np.uint8), kind.id)
    x = np.ones((1, 32), np.float32)

    def calls(count: int = 200) -> int:
        for _ in range(count):
            _cpu.linear(weight, x)
        return count

    return 1 / rate(calls)


def measure(bytes: NDArray[np.uint8], cores: int, types: Iterable[str] = TYPES) -> Iterator[tuple[str, Kernel]]:
    """Each block type with its rates, as they come."""
    for kind in types:
        yield kind, kernel(kind, bytes, cores)
