"""How fast a GPU executor steps and reads prompts, at any depth, against what its memory gives in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ..arch.network import Network
from ..engine.executor import DraftWish
from ..engine.gpu.executor import GpuExecutor
from ..ops.gpu.columns import Part, step_table
from ..ops.gpu.draft_accept import agreeing
from ..ops.gpu.draft_table import DRAFTED
from ..ops.gpu.sequence import GpuState
from ..ops.gpu.state import AttentionMemory
from .gpu_answers import answer_milliseconds, answered
from .gpu_figures import AnswerTime, DiskTime, GpuReport, Memory, PromptTime, ResumeTime, SpeculativeTime, StepTime
from .gpu_profile import KernelTime, kernel_times, stages
from .gpu_saved import from_disk, resumed
from .traffic import expert_bytes, traffic

COPY_BYTES = 4 << 30
RUN, STEPS = 0.06, 16  # seconds that steps are timed at a time, and how many at most
Note = Callable[[str], None]


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


def fill_random(executor: GpuExecutor) -> None:
    """Random keys and values in all caches; recurrent memory stays as it is."""
    for memory in executor.pool.layers:
        if isinstance(memory, AttentionMemory):
            if memory.codes.dtype == torch.int8:
                memory.codes.random_(-127, 128)
            else:
                memory.codes.normal_()
            memory.scales.fill_(1 / 127 if memory.codes.dtype == torch.int8 else 1)
            memory.pooled.normal_()


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
        torch.cuda.empty_cache()
        self.generator = np.random.default_rng(0)

    def report(self, widths: Sequence[int] = (1, 4)) -> GpuReport:
        """What there is to say before the measurements; makes the graphs of steps of these widths."""
        report = GpuReport(
            torch.cuda.get_device_name(self.device),
            self.network.config.name,
            self.kv_bits,
            self.bandwidth,
            self.executor.weight_bytes,
            self.executor.ops.pool.nbytes(),
        )
        report.memory.append(self.memory("loaded"))
        self.note("compiling and capturing")
        started = time.perf_counter()
        self.executor.prepare(widths)
        torch.cuda.synchronize()
        report.capture_seconds = time.perf_counter() - started
        report.memory.append(self.memory("captured"))
        return report

    def memory(self, moment: str) -> Memory:
        """What of the card is taken now."""
        known = self.executor.weight_bytes + self.executor.ops.pool.nbytes()
        allocated, reserved = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return Memory(moment, total - free - known, allocated - known, reserved - allocated)

    def steps(
        self,
        depth: int,
        width: int,
        sequences: int = 1,
        repeats: int = 5,
        profiled: bool = False,
        trace: Path | None = None,
    ) -> StepTime:
        """Time steps of `width` columns, shared by the sequences, after `depth` tokens: runs of some RUN seconds."""
        self.note(f"{width} columns of {sequences} sequences at depth {depth}")
        desk, runner, each = self.executor.desk, self.executor.steps, width // sequences
        with self.states(sequences, depth) as states, self.executor.ops.awake():
            for state in states:
                state.reserve(min(depth + each * (STEPS + 4), state.context))
            ids = self.ids(each)
            table = step_table([Part(ids, state.slot, depth, 0, 0) for state in states])

            def several(count: int) -> None:
                for _ in range(count):
                    runner.run(width)

            def start() -> None:
                torch.cuda.synchronize()
                desk.write(table)

            start()
            several(2)
            steps = min(max(round(RUN / _seconds(lambda: several(2)) * 2), 4), STEPS)
            runs = []
            for _ in range(repeats):
                start()
                runs.append(1000 * _seconds(lambda: several(steps)) / steps)
            start()
            kernels = kernel_times(lambda: several(1), 4, trace) if profiled or trace else []
            host = self._host(states, depth, ids)
        moved = step_bytes(self.network, depth, width, self.kv_bits)
        milliseconds = median(runs)
        share = moved / (milliseconds / 1000) / self.bandwidth
        return StepTime(depth, width, sequences, milliseconds, runs, host, moved, share, stages(kernels), kernels)

    def _host(self, states: Sequence[GpuState], depth: int, ids: list[int], repeats: int = 20) -> float:
        """Milliseconds of a step that the host asks for and whose likeliest tokens it gets."""
        times = []
        for _ in range(repeats):
            for state in states:
                _take_as_read(state, depth)
            started = time.perf_counter()
            self.executor.step([(ids, state) for state in states])
            times.append(1000 * (time.perf_counter() - started))
        return median(times)

    def speculative(self, depth: int, drafts: int = 3, repeats: int = 20, profiled: bool = False) -> SpeculativeTime:
        """Time greedy speculative steps after `depth` tokens: medians after four that warm up."""
        self.note(f"{drafts} drafts at depth {depth}")
        executor, width = self.executor, 1 + drafts
        with self.states(1, depth) as [state], executor.ops.awake():
            executor.step([(self.ids(1), state)])
            token, ends = self.ids(1)[0], list[float]()
            for _ in range(repeats + 4):
                [line], [rows], _ = executor.speculate([DraftWish(token, state, drafts)])
                kept = agreeing([token, *line], rows.likeliest)
                state.keep(kept)
                token = rows.likeliest[kept - 1]
                ends.append(1000 * time.perf_counter())
            whole = median(np.diff(ends[3:]).tolist())
            engine = answer_milliseconds(self, state, drafts, repeats)
            state.reserve(min(state.position + 16 * (repeats + 8), state.context))
            columns = [Part([token, *[DRAFTED] * drafts], state.slot, state.position, 0, 0)]
            executor.desk.write(step=step_table(columns))

            def guess() -> None:
                executor.launch_behind(width, 1, drafts)

            def replay(count: int) -> None:
                for _ in range(count):
                    executor.steps.run(width, whole=True)
                    guess()

            def drafting() -> float:
                executor.steps.run(width, whole=True)  # whose time hides that of launching
                return 1000 * _seconds(guess)

            replay(2)
            alone = median(drafting() for _ in range(repeats))
            device = median(1000 * _seconds(lambda: replay(8)) / 8 for _ in range(repeats // 4))
            kernels = kernel_times(guess, 3) if profiled else []
        return SpeculativeTime(depth, drafts, whole, alone, device, engine, kernels)

    def answered(self, depth: int, **params: Any) -> AnswerTime:
        """See `gpu_answers.answered`."""
        return answered(self, depth, **params)

    def resumed(self, depth: int) -> ResumeTime:
        """See `gpu_saved.resumed`."""
        return resumed(self, depth)

    def from_disk(self, depth: int, folder: Path) -> DiskTime:
        """See `gpu_saved.from_disk`."""
        return from_disk(self, depth, folder)

    def prompt(self, tokens: int, depth: int = 0, repeats: int = 3) -> PromptTime:
        """Time a prompt of `tokens` after `depth` others: the median of `repeats` after one that warms up.

        A single one is warmed up by its last two chunks alone, as they are cut in it: the last may be shorter.
        """
        self.note(f"prompt of {tokens} after {depth}")
        ids, chunk = self.ids(tokens), self.executor.chunk
        times = []
        with self.states(1, depth) as [state]:
            starts = [(max(0, (tokens - 1) // chunk - 1) * chunk, False)] if repeats == 1 else [(0, False)]
            for first, counts in [*starts, *[(0, True)] * repeats]:
                _take_as_read(state, depth + first)
                torch.cuda.synchronize()
                started = time.perf_counter()
                for start in range(first, tokens, chunk):
                    self.executor.forward(ids[start : start + chunk], state, last_only=True)
                if counts:
                    times.append(time.perf_counter() - started)
        return PromptTime(tokens, depth, median(times), tokens / median(times))

    def long_prompt(self, lengths: Sequence[int]) -> Iterator[PromptTime]:
        """Time one prompt from an empty context up to each of the lengths, after its last two chunks as warm-up."""
        self.note(f"prompt of {max(lengths)}, looked at after {', '.join(map(str, sorted(lengths)))}")
        ids, chunk = self.ids(max(lengths)), self.executor.chunk
        ends = sorted({*lengths, *range(chunk, len(ids), chunk)})
        with self.states(1, 0) as [state]:
            before = ends[-3] if len(ends) > 2 else 0
            _take_as_read(state, before)
            for start in range(before, len(ids), chunk):
                self.executor.forward(ids[start : start + chunk], state, last_only=True)
            _take_as_read(state, 0)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for start, end in zip([0, *ends], ends, strict=False):
                self.executor.forward(ids[start:end], state, last_only=True)
                if end in lengths:
                    seconds = time.perf_counter() - started
                    yield PromptTime(end, 0, seconds, end / seconds)

    def prompt_kernels(self, tokens: int) -> list[KernelTime]:
        """The kernels of one prompt chunk from an empty context."""
        ids = self.ids(tokens)
        with self.states(1, 0) as [state]:

            def read() -> None:
                self.executor.forward(ids, state, last_only=True)

            return kernel_times(read, 1)

    @contextmanager
    def states(self, count: int, depth: int) -> Iterator[list[GpuState]]:
        """States that have read `depth` random tokens."""
        states = [self.executor.new_state(self._context) for _ in range(count)]
        try:
            for state in states:
                state.reserve(depth)
                _take_as_read(state, depth)
            if depth:
                fill_random(self.executor)
            yield states
        finally:
            for state in states:
                state.close()

    @property
    def _context(self) -> int:
        return self.executor.ops.pool.context

    def ids(self, count: int) -> list[int]:
        """Random tokens."""
        ids: Sequence[int] = self.generator.integers(0, self.network.config.vocabulary, count).tolist()
        return list(ids)


def _take_as_read(state: GpuState, depth: int) -> None:
    """A state after `depth` tokens, whatever its memory holds."""
    state.position, state.pending, state.open = depth, 0, 0
    state.draft_position, state.carried = depth, []
