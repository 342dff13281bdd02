"""The executor of device="cpu": the instruction set of `ops.cpu` on the file's own blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import psutil

from ..arch.config import Config
from ..arch.weights import Network
from ..errors import MachineError
from ..ops.cpu import CpuOps, CpuState, KvPool
from ..ops.pages import Saved
from .draft_layer import propose, remember
from .executor import STEP_COLUMNS, DraftWish, Speculated, draft_then_step
from .forward import part_rows, residual
from .logits import Logits
from .plan import SharedMemory, pages_for, plan_memory


class CpuExecutor:
    """Runs a network on the CPU. kv_bits: 8 or 16. ops: the network's, if not on the mapped file."""

    def __init__(self, network: Network, threads: int | None, kv_bits: int, ops: CpuOps | None = None) -> None:
        self.config = network.config
        if kv_bits == 8 and self.config.head_dim % 32 and not all(self.config.recurrent):
            raise MachineError(f"heads of {self.config.head_dim} do not fit the 8-bit cache; ask for kv_bits 16")
        self.ops = ops or CpuOps(network, threads)
        self.drafts = network.draft is not None
        self._kv_bits = kv_bits
        self.layout = f"cpu, {kv_bits} bit"
        self.video_bytes = 0
        self.experts_in: Mapping[str, int] | None = None

    def new_state(self, context: int) -> CpuState:
        """See `Executor.new_state`. Memory is committed as the context fills, but must be there for all of it."""
        needed, free = cache_bytes(self.config, context, self._kv_bits), self.free_memory()
        if needed > free:
            raise MachineError(
                f"a context of {context} tokens needs {needed / 1e9:.1f} GB for keys and values, and "
                f"{free / 1e9:.1f} GB of memory are free; ask for a smaller context"
            )
        return self.ops.new_state(context, self._kv_bits)

    def share_memory(self, sequences: int, context: int, prefix_bytes: int | None) -> SharedMemory:
        """See `Executor.share_memory`. Memory is committed as it fills, but must be there for all of it."""
        one = self.new_pool(1)
        fixed_bytes = self.ops.new_state(context, self._kv_bits, one).fixed_bytes
        most, token_bytes = pages_for(context, one.page_tokens) * one.page_tokens, one.page_bytes // one.page_tokens
        free = self.free_memory()
        plan = plan_memory(free, sequences, most, token_bytes, fixed_bytes, prefix_bytes)
        pool = self.new_pool(plan.pool_tokens)
        states = [self.ops.new_state(context, self._kv_bits, pool) for _ in range(sequences)]
        return SharedMemory(pool, states, plan.prefix_bytes, plan.total)

    def free_memory(self) -> int:
        """Bytes that states may take."""
        return int(psutil.virtual_memory().available)

    def new_pool(self, tokens: int) -> KvPool:
        """Pages for so many tokens."""
        return KvPool(self.ops.weights, tokens, self._kv_bits)

    def save(self, state: CpuState) -> Saved:
        """See `Executor.save`."""
        return state.save()

    def resume(self, state: CpuState, saved: Saved, ids: Sequence[int]) -> None:
        """See `Executor.resume`."""
        state.resume(saved, ids)

    def forward(self, ids: Sequence[int], state: CpuState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        streams = self._read([(ids, state)], revocable=False)
        logits: np.ndarray = self._head(streams, slice(len(ids) - 1, None) if last_only else None)
        return logits

    def step(self, parts: Sequence[tuple[Sequence[int], CpuState]]) -> list[Logits]:
        """See `Executor.step`."""
        assert 0 < sum(len(ids) for ids, _ in parts) <= STEP_COLUMNS
        logits = self._head(self._read(parts, revocable=True), None)
        return [Logits.of(logits[rows]) for rows in part_rows(parts)]

    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """See `Executor.draft`."""
        return propose(self.ops, wishes)

    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """See `Executor.speculate`."""
        return draft_then_step(self, wishes)

    def _read(self, parts: Sequence[tuple[Sequence[int], CpuState]], revocable: bool) -> np.ndarray:
        streams: np.ndarray = residual(self.ops, parts, revocable)
        if self.drafts:
            for rows, (ids, state) in zip(part_rows(parts), parts, strict=True):
                remember(self.ops, state, ids, streams[rows], revocable)
        return streams

    def _head(self, streams: np.ndarray, rows: slice | None) -> np.ndarray:
        logits: np.ndarray = self.ops.head(self.ops.weights.head_mix, self.ops.weights.output, streams, rows)
        return logits


def cache_bytes(config: Config, context: int, kv_bits: int) -> int:
    """Bytes that the keys and values of `context` tokens take in all attention layers, scales left out."""
    layers = len(config.recurrent) - sum(config.recurrent) + config.draft_layers
    return layers * context * config.kv_heads * 2 * config.head_dim * kv_bits // 8
