"""What kernels must know of a block type, as compile-time constants by its ggml id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import triton

from ...quant import BY_NAME, fp4, iq4
from .planar import LAYOUTS, Layout
from .tiles import TILES

# How the sub-scales multiply, as in csrc/kernels/units.h
BLOCK, GROUP, TWO_FLOATS = 0, 1, 2
NO_MINIMUM, BLOCK_MINIMUM, GROUP_MINIMUM = 0, 1, 2


@dataclass(frozen=True)
class Kind:
    """code = stored − bias; table: the sixteen values of a look-up in codes of four bits, or the eight in those of two
    and a sign; minimum and scales as in csrc/kernels/units.h."""

    scales: int = BLOCK
    minimum: int = NO_MINIMUM
    bias: int = 0
    table: tuple[int, ...] = ()


def _signed(*magnitudes: int) -> tuple[int, ...]:
    return (*magnitudes, *(-m for m in magnitudes))


_KINDS = {
    "Q8_0": Kind(),
    "Q4_0": Kind(bias=8),
    "Q4_1": Kind(minimum=BLOCK_MINIMUM),
    "Q5_0": Kind(bias=16),
    "Q5_1": Kind(minimum=BLOCK_MINIMUM),
    "Q2_K": Kind(scales=GROUP, minimum=GROUP_MINIMUM),
    "Q3_K": Kind(scales=GROUP, bias=4),
    "Q4_K": Kind(minimum=BLOCK_MINIMUM),
    "Q5_K": Kind(minimum=BLOCK_MINIMUM),
    "Q6_K": Kind(scales=GROUP, bias=32),
    "IQ2_XXS": Kind(table=_signed(8, 25, 43, 0)),
    "IQ2_XS": Kind(scales=GROUP, table=_signed(8, 25, 43, 0)),
    "IQ2_S": Kind(scales=GROUP, table=_signed(8, 25, 43, 0)),
    "IQ3_XXS": Kind(table=_signed(4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": Kind(table=_signed(1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1_S": Kind(bias=9),
    "IQ1_M": Kind(scales=GROUP, bias=9),
    "IQ4_NL": Kind(table=tuple(int(v) for v in iq4.VALUES)),
    "IQ4_XS": Kind(table=tuple(int(v) for v in iq4.VALUES)),
    "MXFP4": Kind(table=tuple(int(v) for v in fp4.VALUES)),
    "NVFP4": Kind(scales=TWO_FLOATS, table=tuple(int(v) for v in fp4.VALUES)),
    "Q1_0": Kind(bias=1),
    "Q2_0": Kind(bias=1),
    "PQ2_0": Kind(bias=1),
    "TQ1_0": Kind(bias=1),
    "TQ2_0": Kind(bias=1),
    "F32": Kind(),
    "F16": Kind(),
    "BF16": Kind(),
}


@dataclass(frozen=True)
class _Fields:
    """A type's name, kind and layout, all that kernels ask for."""

    name: str
    kind: Kind
    layout: Layout
    words: tuple[int, ...]  # the table, four signed bytes in each
    addends: tuple[int, ...]  # the tables of `_addends` likewise

    def before(self, width: int) -> int:
        """Bytes of a block in the code planes before the one of `width` bits; of all of them for 0."""
        widths = self.layout.widths
        return sum(4 * w for w in (widths[: widths.index(width)] if width else widths))


def _words(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(word) for word in np.array(values, np.int8).view("<i4"))


def _addends(table: tuple[int, ...]) -> tuple[int, ...]:
    """Tables of eight for `integer.look_up_addends`: entry k is the sum of A[k] and the sign of B[k] (0 or −1), entry
    k + 8 that of B[k] and the sign of A[k]."""
    if len(table) != 16:
        return ()
    low, high = table[:8], table[8:]
    first = tuple(a + (b < 0) for a, b in zip(low, high, strict=True))
    second = tuple(b + (a < 0) for a, b in zip(low, high, strict=True))
    pairs = zip((*first, *second), table, strict=True)
    assert all((sum_ < 0) == (value < 0) and sum_ < 128 for sum_, value in pairs)
    return _words((*first, *second))


# Tables reach the functions below as defaults: what kernels see of globals is compared at every launch.
_FIELDS = {
    BY_NAME[name].id: _Fields(name, kind, LAYOUTS[name], _words(kind.table), _addends(kind.table))
    for name, kind in _KINDS.items()
}
_FIELDS |= {tiled.id: _FIELDS[BY_NAME[name].id] for name, tiled in TILES.items()}
_TILES = frozenset(tiled.id for tiled in TILES.values())


@triton.constexpr_function
def is_(number: int, *names: str, fields: dict[int, _Fields] = _FIELDS) -> bool:
    """Whether the type is one of these."""
    return fields[number].name in names


@triton.constexpr_function
def in_tiles(number: int, tiles: frozenset[int] = _TILES) -> bool:
    """Whether the matrix lies in tiles (tiles.py)."""
    return number in tiles


@triton.constexpr_function
def number_bytes(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    """Bytes of a plain number, 0 for blocks."""
    return fields[number].layout.number


@triton.constexpr_function
def scales_of(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].kind.scales


@triton.constexpr_function
def minimum_of(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].kind.minimum


@triton.constexpr_function
def bias_of(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].kind.bias


@triton.constexpr_function
def wants_sums(number: int, fields: dict[int, _Fields] = _FIELDS) -> bool:
    """Whether the type's products need Σ q."""
    return fields[number].kind.bias != 0 or fields[number].kind.minimum != 0


@triton.constexpr_function
def has_table(number: int, fields: dict[int, _Fields] = _FIELDS) -> bool:
    """Whether codes of four bits are looked up in a table of sixteen."""
    return len(fields[number].kind.table) == 16


@triton.constexpr_function
def has_short_table(number: int, fields: dict[int, _Fields] = _FIELDS) -> bool:
    """Whether codes of two bits and a sign are looked up in a table of eight."""
    return len(fields[number].kind.table) == 8


@triton.constexpr_function
def table_word(number: int, word: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    """Four bytes of the look-up table as a signed 32-bit number."""
    return fields[number].words[word]


@triton.constexpr_function
def addend_word(number: int, word: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    """Four bytes of the tables of addends."""
    return fields[number].addends[word]


@triton.constexpr_function
def has_width(number: int, width: int, fields: dict[int, _Fields] = _FIELDS) -> bool:
    return width in fields[number].layout.widths


@triton.constexpr_function
def bytes_before(number: int, width: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].before(width)


@triton.constexpr_function
def sub_bytes(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].layout.sub


@triton.constexpr_function
def d_bytes(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].layout.d


@triton.constexpr_function
def blocks_per_d(number: int, fields: dict[int, _Fields] = _FIELDS) -> int:
    return fields[number].layout.every


def plain_type(number: int) -> bool:
    """Whether products of the type take their input as it is."""
    return _FIELDS[number].layout.number > 0
