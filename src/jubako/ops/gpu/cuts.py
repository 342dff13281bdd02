"""How products are cut into programs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import triton

from .kinds import plain_type
from .matrix import Matrix
from .target import interpreted

PLAIN = 10  # units of plain numbers on their way at once
FEW = 8192  # rows below which programs in tiles are hardly more than multiprocessors
WAVES = 65536  # rows from which on programs in tiles come in many waves


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
        # of an output matrix a warp alone asks for three times as much, where its registers can hold it
        alone = matrix.rows >= WAVES and matrix.type.name == "Q4_0"
        return Shape(4, divisor(units, 12), 3) if alone else Shape(8, divisor(units, 12))
    if not shares:
        return Shape(4, divisor(units, 12)) if matrix.rows < 8192 else Shape(8, 1, 4, 2)
    if matrix.rows < 8192:
        return Shape(8, divisor(units, 12), 1, columns)
    return Shape(8, divisor(units, 2), 4, columns)


@dataclass(frozen=True)
class TileCut:
    """How a product of tiles is cut: warps of a program, groups of four columns, units fetched together; at_once: all
    columns of a round come before its first product; registers of a thread, None for as many as that takes.

    shares: of a row, one after another, each with units of its own a round (tile_shares.py), 0 for more columns than
    four; ahead: rounds on their way before the launch in front has ended, 0 for a loop over them; alone: there is one
    column, and a warp has all pairs of a share's unit (tile_column.py)."""

    warps: int
    fours: int
    step: int
    at_once: bool
    registers: int | None
    shares: int = 0
    ahead: int = 1
    alone: bool = False


def tile_cut(rows: int, units: int, tokens: int, packed: bool = False) -> TileCut:
    """packed: weights are of less than a byte.

    Of few rows all weights, or as many as registers hold, are on their way when the launch in front ends; what is left
    is a column's round trip and arithmetic, which shares of a row divide among warps.

    Elsewhere the block pairs of a unit go over four warps if rows are few, else over two, and programs of a launch wait
    for its columns side by side, so that a round trip for every product would be idle time of them all. Short rounds
    leave room for a thousand programs at once, all of a layer's projections or a wave of an output matrix.
    """
    fours, few = triton.next_power_of_2(-(-tokens // 4)), rows < FEW
    if fours > 1:
        step = 2 if packed else 5 if fours == 2 else 10 if few else 2
        return TileCut(4 if few else 2, fours, divisor(units, step), False, None)
    if tokens > 1 and few:
        return side_by_side(share_cut(units, 2, 4, 8))
    if tokens > 1:
        return TileCut(2, 1, divisor(units, 2), True, 128, shares=1, ahead=0)
    if few:
        return side_by_side(column_cut(units, 8, 5 if packed else 1, 5 if packed else 2))
    if packed:
        return TileCut(1, 1, divisor(units, 5), False, 224, shares=1, ahead=0, alone=True)
    if rows < WAVES and units % 2 == 0:
        return replace(column_cut(units, 2, 5, 5), registers=232)
    return TileCut(2, 1, divisor(units, 2 if rows >= WAVES else 5), True, 128 if rows >= WAVES else None)


def share_cut(units: int, most: int, step: int, ahead: int) -> TileCut:
    """Of up to four columns: up to `most` shares with up to `step` units a round, up to `ahead` on their way."""
    shares = 1 << (math.gcd(units, most).bit_length() - 1)
    step = divisor(units // shares, step)
    rounds = units // (shares * step)
    return TileCut(4 * shares, 1, step, True, None, shares, min(rounds, max(1, ahead // step)))


def column_cut(units: int, most: int, step: int, ahead: int) -> TileCut:
    """The same of a single column."""
    cut = share_cut(units, most, step, ahead)
    return replace(cut, warps=cut.shares, alone=True)


def side_by_side(cut: TileCut) -> TileCut:
    """With registers for two programs of eight warps on a multiprocessor, if they suffice."""
    return replace(cut, registers=128) if cut.warps == 8 and (cut.step <= 3 or not cut.alone) else cut


def second_cut(matrix: Matrix, units: int, rows: int, warps: int, columns: int, each: int = 1) -> tuple[int, int]:
    """Rows of a program and units fetched together of a second matrix, where `rows` suit a quantised one; each: rows of
    plain numbers a warp."""
    if plain_type(matrix.type.id):
        if interpreted():
            return min(1024, triton.next_power_of_2(matrix.rows)), 1
        return each * warps, divisor(units, PLAIN // each)
    return rows, divisor(units, 2 if columns == 1 else 1)
