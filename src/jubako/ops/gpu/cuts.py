"""How products are cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

import triton

from .kinds import plain_type
from .matrix import Matrix
from .target import interpreted

PLAIN = 10  # units of plain numbers on their way at once


@dataclass(frozen=True)
class Shape:
    """How a product is cut: rows of a group, units fetched together, groups and columns of a program, rows of a group
    that a warp has (four or eight: halves of units by two warps or one; of plain numbers one)."""

    rows: int
    step: int
    groups: int = 1
    columns: int = 1
    each: int = 4

    @property
    def warps(self) -> int:
        return self.rows // self.each


def divisor(units: int, most: int) -> int:
    """The largest divisor of `units` up to `most`."""
    return max(n for n in range(1, min(units, most) + 1) if units % n == 0)


def shape_of(matrix: Matrix, units: int, tokens: int, shares: bool = True) -> Shape:
    """Columns meet the weights while they are in registers: four in tensor cores, else two of them if rows are many."""
    columns = min(triton.next_power_of_2(tokens), 4)
    if interpreted():
        return Shape(min(1024, triton.next_power_of_2(matrix.rows)), 1, 1, columns)
    if plain_type(matrix.type.id):
        return Shape(4, divisor(units, PLAIN), 1, columns, 1)
    if columns == 1:
        return Shape(8, divisor(units, 12))
    if not shares:
        return Shape(4, divisor(units, 12)) if matrix.rows < 8192 else Shape(8, 1, 4, 2)
    if matrix.rows < 8192:
        return Shape(8, divisor(units, 12), 1, columns)
    return Shape(8, divisor(units, 2), 4, columns)


def second_cut(matrix: Matrix, units: int, rows: int, warps: int, columns: int) -> tuple[int, int]:
    """Rows of a program and units fetched together of a second matrix, where `rows` suit a quantised one."""
    if plain_type(matrix.type.id):
        return (min(1024, triton.next_power_of_2(matrix.rows)), 1) if interpreted() else (warps, divisor(units, PLAIN))
    return rows, divisor(units, 2 if columns == 1 else 1)
