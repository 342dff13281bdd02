"""The executor of device="cuda": everything in video memory, prompts in chunks, steps as captured graphs."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

import numpy as np
import psutil
import torch

from ...arch.network import Network
from ...errors import MachineError
from ...ops.gpu.carry import CARRY, keep_streams
from ...ops.gpu.columns import Columns, Part, step_table
from ...ops.gpu.matrix import Source
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.saved import resume, save, settle_state
from ...ops.gpu.state import GpuState
from ...ops.pages import Saved
from ..executor import STEP_COLUMNS, DraftWish, Speculated, draft_then_step
from ..logits import Logits
from ..plan import SharedMemory, prefix_budget
from .draft import Drafts
from .forward import residual
from .graph import Desk, Graphs
from .step import Steps

PROMPT_ROWS = 64  # prompt chunks are multiples of it; a shorter rest of up to 16 tokens is read as a step


class GpuExecutor:
    """Runs a network on one GPU. Chunks of `chunk` prompt tokens read fastest."""

    chunk = 4096

    def __init__(
        self,
        network: Network,
        device: torch.device,
        *,
        kv_bits: int = 8,
        context: int | None = None,
        tokens: int | None = None,
        sequences: int = 2,
        source: Source | None = None,
        host_table: bool = False,
    ) -> None:
        """context: of one sequence, at most (the network's by default); tokens: cached by all together (`context` by
        default); sequences: at once, one of them a spare for a session that starts anew.

        Raises MachineError when it does not fit.
        """
        self.config = network.config
        self.context = context = context or self.config.context_length
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        try:
            self.ops = GpuOps(
                network, device, slots=sequences, tokens=tokens or context, context=context, kv_bits=kv_bits,
                source=source, host_table=host_table,
            )  # fmt: skip
        except torch.cuda.OutOfMemoryError as error:
            raise _too_little(device, f"the model with {tokens or context} tokens of context") from error
        taken = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else 0
        self.weight_bytes = max(taken - self.ops.pool.nbytes(), 0)
        self.drafts = network.draft is not None
        self.layout = f"gpu, {kv_bits} bit"
        self.video_bytes = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        self.desk = Desk(device, self.config.vocabulary)
        graphs = Graphs(self.ops, self.desk)
        self.steps = Steps(self.ops, graphs)
        self._drafts = Drafts(self.ops, graphs) if self.drafts else None
        self._calls = 0
        self._clock = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []

    def new_state(self, context: int) -> GpuState:
        """See `Executor.new_state`."""
        if context > self.ops.pool.context:
            raise MachineError(
                f"a context of {context} tokens was asked for; memory is laid out for {self.ops.pool.context}"
            )
        if not self.ops.pool.has_slot():
            gc.collect()  # states that nobody holds any more give their slots back
        return GpuState(self.ops.pool, context)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], state: GpuState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        if len(ids) <= STEP_COLUMNS:
            [logits] = self.step([(ids, state)])
            return np.array(logits)[-1 if last_only else 0 :]
        self._calls += 1
        state.reserve(state.position + len(ids))
        settle_state(state)
        try:
            result = self._read_prompt(ids, state, last_only)
        except torch.cuda.OutOfMemoryError as error:
            raise _too_little(self.ops.device, f"reading {len(ids)} tokens at once") from error
        state.read(len(ids))
        return result

    def _read_prompt(self, ids: Sequence[int], state: GpuState, last_only: bool) -> np.ndarray:
        ops = self.ops
        on_device = torch.tensor(list(ids), dtype=torch.int32).to(ops.device)
        columns = Columns.of_prompt(on_device, state.slot, state.position)
        streams = residual(ops, columns)
        if self._drafts is not None:
            self._drafts.read_prompt(state, ids, on_device, streams)
            keep_streams(streams[-1:], ops.pool.carry, columns.last())
        result = ops.head(ops.weights.head_mix, ops.weights.output, streams[-1:] if last_only else streams)
        logits: np.ndarray = result.cpu().numpy()
        return logits

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Sequence[int], GpuState]]) -> list[Logits]:
        """See `Executor.step`."""
        columns = self._columns(parts)
        self.desk.write(step=step_table(columns))
        self.steps.run(sum(len(part.ids) for part in columns))
        likeliest = self.desk.fetch()[0].tolist()
        return self._opened([list(ids) for ids, _ in parts], [state for _, state in parts], likeliest)

    @torch.inference_mode()
    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """See `Executor.draft`."""
        assert self._drafts is not None
        self._calls += 1
        return self._drafts.propose(wishes)

    @torch.inference_mode()
    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """See `Executor.speculate`. The likeliest tokens are drafted and verified without the host in between."""
        if self._drafts is None or any(wish.pick is not None for wish in wishes):
            return draft_then_step(self, wishes)
        columns = self._columns([([wish.next] * (1 + wish.depth), wish.state) for wish in wishes])
        first = self._drafts.catch_up_table(wishes)
        self.desk.write(step_table(columns), step_table(first))
        self._tick(0)
        self._drafts.launch(first, max(wish.depth for wish in wishes))
        self._tick(1)
        self.steps.run(sum(len(part.ids) for part in columns))
        found = self.desk.fetch()
        likeliest, turns = found[0].tolist(), found[1:].T.tolist()
        drafts = [line[: wish.depth] for line, wish in zip(turns, wishes, strict=False)]
        read = [[wish.next, *line] for wish, line in zip(wishes, drafts, strict=True)]
        logits = self._opened(read, [wish.state for wish in wishes], likeliest)
        seconds = self._clock[0].elapsed_time(self._clock[1]) / 1000 if self._clock else 0.0
        return Speculated(drafts, logits, seconds)

    def _tick(self, index: int) -> None:
        if self._clock:
            self._clock[index].record()

    def _columns(self, parts: Sequence[tuple[Sequence[int], GpuState]]) -> list[Part]:
        """Make room for a step's tokens; where they stand."""
        assert 0 < sum(len(ids) for ids, _ in parts) <= STEP_COLUMNS
        self._calls += 1
        for ids, state in parts:
            state.reserve(state.position + len(ids))
            if self._drafts is not None and len(state.carried) + len(ids) > CARRY:
                self._drafts.read(state)
        return [Part(ids, s.slot, s.position, s.pending, s.parity) for ids, s in parts]

    def _opened(self, read: Sequence[list[int]], states: Sequence[GpuState], likeliest: list[int]) -> list[Logits]:
        """The states have read so many ids in a step that is over; the logits stay on the device for now."""
        results, first = [], 0
        for ids, state in zip(read, states, strict=True):
            state.opened(ids)
            last = first + len(ids)
            results.append(Logits(partial(self._rows, self._calls, first, len(ids)), likeliest[first:last]))
            first = last
        return results

    def _rows(self, call: int, first: int, count: int) -> np.ndarray:
        assert call == self._calls, "logits were asked for after the executor had gone on"
        return self.desk.rows(first, count)

    def share_memory(self, sequences: int, context: int, prefix_bytes: int | None) -> SharedMemory:
        """See `SharingExecutor.share_memory`: the slots and pages that were laid out at the start."""
        free, pool = psutil.virtual_memory().available, self.ops.pool
        states = [self.new_state(min(context, pool.context)) for _ in range(sequences)]
        return SharedMemory(pool, states, prefix_budget(free, prefix_bytes), pool.nbytes())

    @torch.inference_mode()
    def save(self, state: GpuState) -> Saved:
        """See `SharingExecutor.save`."""
        return save(state)

    @torch.inference_mode()
    def resume(self, state: GpuState, saved: Saved, ids: Sequence[int] | np.ndarray) -> None:
        """See `SharingExecutor.resume`."""
        resume(state, saved, ids)


def _too_little(device: torch.device, what: str) -> MachineError:
    """The error of running out of video memory, which is given back first."""
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    return MachineError(
        f"{what} does not fit: {free / 1e9:.1f} of {name}'s {total / 1e9:.1f} GB are free; "
        "ask for a smaller context, a smaller file, or the CPU"
    )
