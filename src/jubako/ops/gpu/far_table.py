"""`FarTable`: a table that stays in its file, read by row when a step asks for them, while it computes its first layer.

    hash ─► ask: the rows' numbers, bell ─► first layer ─► await: `done` ─► rows, decoded
                └──► thread (csrc/row_server.h): the rows from the disk ──┘

All of it lies in a captured graph. Prompts read through the host: their tokens are there before anything is computed.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl

from ...arch.tensor import Tensor
from ...errors import MachineError
from .away import PATIENCE, look, tell
from .launch import COLUMNS, power_of_two
from .table import TYPES, HostTable, rows_of
from .target import release, target, wait

if TYPE_CHECKING:
    from ... import _cpu

BELL, DONE, ERROR, COUNT, WORDS = 0, 16, 32, 48, 64  # as csrc/row_server.h has them


@triton.jit
def ask_kernel(
    ids, count, words, to_ids, state, MOST: tl.constexpr, BELL: tl.constexpr, COUNT: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: rows ids [count] are wanted."""
    release(OVERLAP)
    wait(OVERLAP)
    i = tl.arange(0, MOST)
    tl.store(to_ids + i, tl.load(ids + i, mask=i < count, other=0), mask=i < count)
    tl.store(words + COUNT, count)
    number = tl.load(state) + 1
    tl.debug_barrier()
    tl.store(state, number)
    tell(words + BELL, number, FORM)


@triton.jit
def await_kernel(
    words, state, patience, DONE: tl.constexpr, ERROR: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: ends when the rows are there."""
    release(OVERLAP)
    wait(OVERLAP)
    number = tl.load(state)
    left = tl.where(look(words + ERROR, FORM) == 0, patience, 0)
    while (left > 0) & (look(words + DONE, FORM) != number):
        left -= 1
    if left == 0:
        tl.store(words + ERROR, 3, mask=look(words + ERROR, FORM) == 0)


class FarTable:
    """rows: what was read last, in pinned memory where there is a GPU."""

    def __init__(self, tensor: Tensor, stored: _cpu.RowTable, heads: int, device: torch.device) -> None:
        """stored: where the tensor lies; heads: rows of a token. Raises MachineError for a type without kernels."""
        from ... import _cpu

        if tensor.type.name not in TYPES:
            raise MachineError(
                f"{tensor.name} is {tensor.type.name}; a table on the disk must be one of {', '.join(TYPES)}"
            )
        pinned, most = device.type == "cuda", COLUMNS * heads
        self.type, self.cols, self.device = tensor.type, tensor.shape[-1], device
        self._stored, self._pinned = stored, pinned
        self._words = torch.zeros(WORDS, dtype=torch.int32, pin_memory=pinned)
        self._ids = torch.zeros(most, dtype=torch.int64, pin_memory=pinned)
        rows = torch.zeros(most, stored.row_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._state = torch.zeros(1, dtype=torch.int32, device=device)
        self._places = torch.arange(most, device=device)
        self._read = HostTable(rows, self.type, self.cols, device)
        words = self._words.numpy().view("uint32")
        self._server = _cpu.RowServer(stored, words, self._ids.numpy(), rows.numpy())

    def ask(self, ids: torch.Tensor) -> None:
        """Rows ids int64 [n] of a step are wanted; one step at a time."""
        assert len(ids) <= len(self._ids)
        to = target(self.device)
        ask_kernel[(1,)](
            ids, len(ids), self._words, self._ids, self._state, MOST=power_of_two(len(self._ids)), BELL=BELL,
            COUNT=COUNT, FORM=to.form, OVERLAP=to.overlap, num_warps=4, **to.options,
        )  # fmt: skip

    def take(self, count: int) -> torch.Tensor:
        """What was asked for last, decoded: float32 [count, cols]."""
        to = target(self.device)
        await_kernel[(1,)](
            self._words, self._state, PATIENCE, DONE=DONE, ERROR=ERROR, FORM=to.form, OVERLAP=to.overlap,
            num_warps=1, **to.options,
        )  # fmt: skip
        return rows_of(self._read, self._places[:count])

    def of_prompt(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ids int64 [n] of a prompt, decoded: float32 [n, cols]. Waits for the device and the disk."""
        from ... import _cpu

        wanted, places = np.unique(ids.cpu().numpy(), return_inverse=True)
        try:
            raw = torch.from_numpy(self._stored.begin(wanted).take(self._stored.row_bytes))
        except _cpu.ReadError as error:
            raise MachineError(str(error)) from error
        read = HostTable(raw.to(self.device), self.type, self.cols, self.device)
        return rows_of(read, torch.from_numpy(places.reshape(-1)).to(self.device))

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Inside, steps may be launched; they are waited for before the end. Raises MachineError if one went wrong."""
        self._server.begin()
        try:
            yield
        finally:
            self._server.end()
        if int(self._words[ERROR]):
            raise MachineError(self._server.error or "rows of the n-gram table did not come in time; start again")
