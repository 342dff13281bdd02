"""How fast a GPU executor steps and reads prompts, at any depth, against what its memory gives in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ..arch.network import Network
from ..engine.executor import DraftWish
from ..engine.gpu.executor import GpuExecutor
from ..ops.gpu.columns import Part, step_table
from ..ops.gpu.state import AttentionMemory, GpuState
from .gpu_profile import KernelTime, kernel_times, stages
from .traffic import expert_bytes, traffic

COPY_BYTES = 4 << 30
Note = Callable[[str], None]


@dataclass(frozen=True)
class StepTime:
    """Steps of `width` columns after `depth` tokens. milliseconds: median of `runs`, each the mean of several steps
    replayed without the host; host: of one step asked for by the host, logits copied.

    moved        bytes that such a step must move: weights, experts (of a flat routing), state, cache
    share        of the copy bandwidth that this takes
    """

    depth: int
    width: int
    milliseconds: float
    runs: list[float]
    host: float
    moved: int
    share: float
    stages: dict[str, float] = field(default_factory=dict)
    kernels: list[KernelTime] = field(default_factory=list)


@dataclass(frozen=True)
class PromptTime:
    """A prompt of `tokens` after `depth` tokens."""

    tokens: int
    depth: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class SpeculativeTime:
    """Speculative steps of one sequence after `depth` tokens, asked for by the host, of which two columns are kept.

    milliseconds: of a whole one, its drafts, catch-up and verification; drafting: of that, the draft layer's.
    """

    depth: int
    drafts: int
    milliseconds: float
    drafting: float


@dataclass
class GpuReport:
    """A whole benchmark. Bytes, bytes/s, seconds."""

    device: str
    name: str
    kv_bits: int
    copy_bandwidth: float
    weight_bytes: int
    state_bytes: int
    other_bytes: int  # of the card, beyond weights and state
    capture_seconds: float
    steps: list[StepTime] = field(default_factory=list)
    prompts: list[PromptTime] = field(default_factory=list)
    prompt_kernels: list[KernelTime] = field(default_factory=list)  # of a chunk
    speculative: list[SpeculativeTime] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return asdict(self)


def copy_bandwidth(device: torch.device, size: int = COPY_BYTES) -> float:
    """Bytes/s, read and written, of a large copy on the device: the best of five."""
    size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    a = torch.empty(size, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * size / min(_seconds(lambda: b.copy_(a)) for _ in range(5))


def _seconds(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def fill_random(executor: GpuExecutor, state: GpuState, depth: int) -> None:
    """Take `depth` random tokens as read: caches hold random rows, recurrent memory stays as it is."""
    state.reserve(depth)
    if depth:
        for memory in executor.ops.pool.layers:
            if isinstance(memory, AttentionMemory):
                if memory.codes.dtype == torch.int8:
                    memory.codes.random_(-127, 128)
                else:
                    memory.codes.normal_()
                memory.scales.fill_(1 / 127 if memory.codes.dtype == torch.int8 else 1)
                memory.pooled.normal_()
    state.position, state.pending, state.open = depth, 0, 0


def step_bytes(network: Network, depth: int, width: int, kv_bits: int) -> int:
    """What a step must move: each column's own experts count once if routing is flat, its cache for itself."""
    one = traffic(network, depth, kv_bits)
    config = network.config
    missed = (1 - config.experts_used / config.experts) ** width
    routed = sum(expert_bytes(layer.experts) for layer in network.layers)
    return one.dense + one.rows * width + one.state + one.cache * width + int(routed * config.experts * (1 - missed))


class GpuBench:
    """Measurements on one executor. `note` is told what is being done."""

    def __init__(self, network: Network, executor: GpuExecutor, kv_bits: int, note: Note = lambda text: None) -> None:
        self.network, self.executor, self.kv_bits, self.note = network, executor, kv_bits, note
        self.device = executor.ops.device
        self.bandwidth = copy_bandwidth(self.device)
        self.generator = np.random.default_rng(0)

    def report(self, widths: Sequence[int] = (1, 4)) -> GpuReport:
        """What there is to say before the measurements; captures the graphs of steps of these widths."""
        self.note("capturing graphs")
        started = time.perf_counter()
        self.executor.steps.compile(widths)
        for width in widths:
            self.executor.steps.run(width)
        captured = time.perf_counter() - started
        free, total = torch.cuda.mem_get_info(self.device)
        weights, state = self.executor.weight_bytes, self.executor.ops.pool.nbytes()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]
        return GpuReport(
            torch.cuda.get_device_name(self.device),
            self.network.config.name,
            self.kv_bits,
            self.bandwidth,
            weights,
            state,
            total - free - weights - state,
            captured,
        )

    def steps(
        self,
        depth: int,
        width: int,
        repeats: int = 7,
        steps: int = 16,
        profiled: bool = False,
        trace: Path | None = None,
    ) -> StepTime:
        """Time steps of `width` columns after `depth` tokens."""
        self.note(f"{width} columns at depth {depth}")
        state = self.executor.new_state(self.executor.ops.pool.context)
        try:
            fill_random(self.executor, state, depth)
            state.reserve(min(depth + width * steps * (repeats + 4), state.context))
            ids = self._ids(width)
            runner = self.executor.steps

            def start() -> None:
                torch.cuda.synchronize()
                self.executor.desk.write(step_table([Part(ids, state.slot, depth, 0, 0)]))

            def several(count: int = steps) -> None:
                for _ in range(count):
                    runner.run(width)

            start()
            several()
            runs = []
            for _ in range(repeats):
                start()
                runs.append(1000 * _seconds(several) / steps)
            start()
            kernels = kernel_times(lambda: several(1), 4, trace) if profiled or trace else []
            host = self._host(state, depth, ids)
        finally:
            state.close()
        moved = step_bytes(self.network, depth, width, self.kv_bits)
        each = median(runs)
        return StepTime(
            depth, width, each, runs, host, moved, moved / (each / 1000) / self.bandwidth, stages(kernels), kernels
        )

    def _host(self, state: GpuState, depth: int, ids: list[int], repeats: int = 20) -> float:
        """Milliseconds of a step that the host asks for and whose logits it gets."""
        times = []
        for _ in range(repeats):
            state.position, state.pending, state.open = depth, 0, 0
            started = time.perf_counter()
            self.executor.step([(ids, state)])
            times.append(1000 * (time.perf_counter() - started))
        return median(times)

    def speculative(self, depth: int, drafts: int = 3, repeats: int = 15) -> SpeculativeTime:
        """Time speculative steps after `depth` tokens: the medians after three that warm up."""
        self.note(f"{drafts} drafts at depth {depth}")
        state = self.executor.new_state(self.executor.ops.pool.context)
        whole, drafting = [], []
        try:
            fill_random(self.executor, state, depth)
            state.draft_position, state.carried = depth, []
            self.executor.step([(self._ids(1), state)])
            for run in range(repeats + 3):
                following = self._ids(1)[0]
                started = time.perf_counter()
                [found] = self.executor.draft([DraftWish(following, state, drafts)])
                drafted = time.perf_counter()
                self.executor.step([([following, *found], state)])
                state.keep(2)
                if run >= 3:
                    drafting.append(1000 * (drafted - started))
                    whole.append(1000 * (time.perf_counter() - started))
        finally:
            state.close()
        return SpeculativeTime(depth, drafts, median(whole), median(drafting))

    def prompt(self, tokens: int, depth: int = 0, repeats: int = 3) -> PromptTime:
        """Time a prompt of `tokens` after `depth` others: the median of `repeats` after one that warms up."""
        self.note(f"prompt of {tokens} after {depth}")
        ids = self._ids(tokens)
        times = []
        state = self.executor.new_state(self.executor.ops.pool.context)
        try:
            for run in range(repeats + (1 if repeats > 1 else 0)):
                fill_random(self.executor, state, depth)
                torch.cuda.synchronize()
                started = time.perf_counter()
                for start in range(0, tokens, self.executor.chunk):
                    self.executor.forward(ids[start : start + self.executor.chunk], state, last_only=True)
                if run or repeats == 1:
                    times.append(time.perf_counter() - started)
        finally:
            state.close()
        return PromptTime(tokens, depth, median(times), tokens / median(times))

    def prompt_kernels(self, tokens: int) -> list[KernelTime]:
        """The kernels of one prompt chunk from an empty context."""
        ids = self._ids(tokens)
        state = self.executor.new_state(self.executor.ops.pool.context)
        try:
            return kernel_times(lambda: self._read(ids, state), 1)
        finally:
            state.close()

    def _read(self, ids: list[int], state: GpuState) -> None:
        self.executor.forward(ids, state, last_only=True)

    def _ids(self, count: int) -> list[int]:
        ids: Sequence[int] = self.generator.integers(0, self.network.config.vocabulary, count).tolist()
        return list(ids)
