"""Sixteen rows of a matrix in tiles times a few columns, by one program: weights on their way, products, rounds."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .fixed import hold
from .kinds import is_
from .target import wait
from .tensor import fetch_columns, fetch_tiles, meet_tiles, no_tiles
from .tile_quants import fetch_quant_columns, fetch_quants
from .tile_steps import meet_quants


@triton.jit
def tile_products(
    base, rows, units, top, x, tokens, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, AT_ONCE: tl.constexpr, TYPE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums of sixteen rows as `block_dots` orders them, float32 [t = column, g, p] each, a tuple for each group
    of four columns.

    Over UNITS units from `first` on. Waits for earlier kernels once its first weights are on their way.
    """
    q, d, s, blocks = x
    sums = no_tiles(FOURS)
    for u in range(first, first + UNITS, STEP):
        # the wait is in here, as a second copy of the body takes long to compile; later ones pass at once
        if is_(TYPE, "Q8_0"):
            raws = fetch_tiles(base, rows, units, top, u, STEP)
            wait(OVERLAP)
            units_of_x = fetch_columns((q, d, blocks), tokens, u, STEP, FOURS)
            sums = meet_tiles(sums, raws, units_of_x, tokens, STEP, FOURS, AT_ONCE, FORM)
        else:
            raws = fetch_quants(base, rows, units, top, u, STEP, 1, TYPE)
            wait(OVERLAP)
            units_of_x = fetch_quant_columns(x, tokens, u, STEP, FOURS, 1, TYPE)
            if AT_ONCE:
                hold(rows, FORM)
            sums = meet_quants(sums, raws, units_of_x, FOURS, TYPE, FORM)
    return sums
