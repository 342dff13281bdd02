"""Where the tokens of a call stand: in device memory, so that one captured graph serves any sequence and position."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from .launch import COLUMNS

# Rows of a step's table, int32 [ROWS, COLUMNS]: three by column, then six by part (a part is one sequence's columns).
IDS, SLOT, POSITION, FIRST, COUNT, PART_SLOT, BASE, PENDING, PARITY, ROWS = range(10)


@dataclass(frozen=True)
class Columns:
    """The tokens of one call, int32 on the device: which, of which sequence's slot, at which position.

    parts        the whole table of a step; None for a piece of a prompt
    slot, start  of a piece of a prompt: its tokens belong to one slot and follow each other
    early        of a step: whether kernels may read the table before they wait for the launches in front, none of which
                 writes it; one that releases nothing lies between (draft_table.py)
    """

    ids: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    parts: torch.Tensor | None
    slot: int = -1
    start: int = -1
    early: bool = False

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def last(self) -> Columns:
        """The last token of a piece of a prompt."""
        return Columns(
            self.ids[-1:], self.slots[-1:], self.positions[-1:], None, self.slot, self.start + self.tokens - 1
        )

    @classmethod
    def of_step(cls, table: torch.Tensor, width: int, early: bool = False) -> Columns:
        """The first `width` columns of a step's table."""
        return cls(table[IDS, :width], table[SLOT, :width], table[POSITION, :width], table, early=early)

    @classmethod
    def of_prompt(cls, ids: torch.Tensor, slot: int, position: int) -> Columns:
        """`ids` int32 [T] at `position` and after."""
        slots = torch.full_like(ids, slot)
        positions = torch.arange(position, position + len(ids), dtype=torch.int32, device=ids.device)
        return cls(ids, slots, positions, None, slot, position)


class Part(NamedTuple):
    """One sequence's share of a step. pending: columns kept of its last step that its memory does not hold yet."""

    ids: Sequence[int]
    slot: int
    position: int
    pending: int
    parity: int


def step_table(parts: Sequence[Part]) -> np.ndarray:
    """The table of a step: int32 [ROWS, COLUMNS]. Unused parts have no columns."""
    table, first = array("i", bytes(4 * ROWS * COLUMNS)), 0  # a few numbers each: arrays of numpy take longer
    for index, (ids, slot, position, pending, parity) in enumerate(parts):
        for column, id in enumerate(ids, first):
            table[IDS * COLUMNS + column] = id
            table[SLOT * COLUMNS + column] = slot
            table[POSITION * COLUMNS + column] = position + column - first
        own = (first, len(ids), slot, position, pending, parity)
        for row, value in enumerate(own, FIRST):
            table[row * COLUMNS + index] = value
        first += len(ids)
    assert 0 < first <= COLUMNS, f"{first} columns in a step"
    return np.frombuffer(table, np.int32).reshape(ROWS, COLUMNS)
