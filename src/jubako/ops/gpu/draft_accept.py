"""What a step leaves to the draft layer if it is greedy: of each sequence the columns whose ids agree with what the
network would have said, and the likeliest token after them. So the next drafts need not wait for the host.

The table of their first pass has all columns of the step, each where it stood. Those that do not agree belong to
nobody there: they are of the idle slot, and no part counts them.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl


@triton.jit
def leave_accepted(
    step, draft, read, likeliest, idle,
    COLUMNS: tl.constexpr, IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr, PARITY: tl.constexpr,
):  # fmt: skip
    """Write the draft layer's table `draft` after a step by the table `step`, which still stands where that read.

    read, likeliest [COLUMNS]: the ids of the step's columns, and the likeliest after them.
    """
    c = tl.arange(0, COLUMNS)
    first, count = tl.load(step + FIRST * COLUMNS + c), tl.load(step + COUNT * COLUMNS + c)
    base, slot = tl.load(step + BASE * COLUMNS + c), tl.load(step + PART_SLOT * COLUMNS + c)
    position = tl.load(step + POSITION * COLUMNS + c)
    offset = c[:, None] - first[None, :]  # [column, part]
    mine = (offset >= 0) & (offset < count[None, :])
    after = tl.sum(tl.where(c[None, :] == c[:, None] + 1, read[None, :], 0), axis=1)
    wrong = (after != likeliest)[:, None] | (offset == count[None, :] - 1)
    kept = tl.min(tl.where(mine & wrong, offset + 1, COLUMNS), axis=0)
    kept = tl.where(count > 0, kept, 0)
    live = tl.max((mine & (offset < kept[None, :])).to(tl.int32), axis=1) > 0
    own = tl.sum(tl.where(mine, slot[None, :], 0), axis=1)
    tl.store(draft + IDS * COLUMNS + c, tl.maximum(likeliest, 0))
    tl.store(draft + SLOT * COLUMNS + c, tl.where(live, own, idle))
    tl.store(draft + POSITION * COLUMNS + c, tl.where(live, position, 0))
    tl.store(draft + FIRST * COLUMNS + c, first)
    tl.store(draft + COUNT * COLUMNS + c, kept)
    tl.store(draft + PART_SLOT * COLUMNS + c, slot)
    tl.store(draft + BASE * COLUMNS + c, base)
    tl.store(draft + PENDING * COLUMNS + c, 0 * c)
    tl.store(draft + PARITY * COLUMNS + c, 0 * c)


def agreeing(read: Sequence[int], likeliest: Sequence[int]) -> int:
    """How many columns of one sequence `leave_accepted` takes, on the host."""
    return next((c + 1 for c, id in enumerate(read[1:]) if id != likeliest[c]), len(read))
