"""Which columns of a step the draft layer takes up by itself, against the host's rule."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from jubako.ops.gpu import columns
from jubako.ops.gpu.columns import BASE, COUNT, FIRST, IDS, PART_SLOT, POSITION, SLOT, Part, step_table
from jubako.ops.gpu.draft_accept import agreeing, leave_accepted

IDLE = 9
ROWS = {
    name: getattr(columns, name)
    for name in ("IDS", "SLOT", "POSITION", "FIRST", "COUNT", "PART_SLOT", "BASE", "PENDING", "PARITY")
}


@triton.jit
def accept(
    step, draft, likeliest, idle, COLUMNS: tl.constexpr, IDS: tl.constexpr, SLOT: tl.constexpr, POSITION: tl.constexpr,
    FIRST: tl.constexpr, COUNT: tl.constexpr, PART_SLOT: tl.constexpr, BASE: tl.constexpr, PENDING: tl.constexpr,
    PARITY: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, COLUMNS)
    leave_accepted(
        step, draft, tl.load(step + IDS * COLUMNS + c), tl.load(likeliest + c), idle,
        COLUMNS, IDS, SLOT, POSITION, FIRST, COUNT, PART_SLOT, BASE, PENDING, PARITY,
    )  # fmt: skip


def test_columns_that_agree_and_the_token_after_them(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        counts, left = [], 16
        while left and len(counts) < 8 and (not counts or rng.random() < 0.7):
            counts.append(int(rng.integers(1, min(left, 8) + 1)))
            left -= counts[-1]
        slots, bases = rng.permutation(8)[: len(counts)].tolist(), rng.integers(0, 50, len(counts)).tolist()
        read = [rng.integers(0, 3, count).tolist() for count in counts]
        after = [[int(rng.integers(-1, 3)) for _ in ids[1:]] + [77] for ids in read]
        for ids, likeliest in zip(read, after, strict=True):
            for c in range(int(rng.integers(0, len(ids)))):
                likeliest[c] = ids[c + 1]
        parts = [Part(ids, slot, base, 1, 1) for ids, slot, base in zip(read, slots, bases, strict=True)]
        table = torch.from_numpy(step_table(parts).copy()).to(device)
        flat = torch.tensor([id for line in after for id in line] + [5] * left, dtype=torch.int32, device=device)
        draft = torch.full_like(table, 99)
        accept[(1,)](table, draft, flat, IDLE, COLUMNS=16, **ROWS)
        got = draft.cpu().numpy()
        kept = [agreeing(ids, likeliest) for ids, likeliest in zip(read, after, strict=True)]
        assert got[COUNT].tolist() == kept + [0] * (16 - len(kept))
        assert not got[[ROWS["PENDING"], ROWS["PARITY"]]].any()
        first, idle = 0, np.ones(16, bool)
        for part, (ids, likeliest, keeps) in enumerate(zip(read, after, kept, strict=True)):
            assert ids[1:keeps] == likeliest[: keeps - 1] and (keeps == len(ids) or ids[keeps] != likeliest[keeps - 1])
            own = slice(first, first + keeps)
            assert got[IDS, own].tolist() == [max(id, 0) for id in likeliest[:keeps]]
            assert got[POSITION, own].tolist() == list(range(bases[part], bases[part] + keeps))
            assert set(got[SLOT, own].tolist()) == {slots[part]}
            assert got[[FIRST, PART_SLOT, BASE], part].tolist() == [first, slots[part], bases[part]]
            idle[own] = False
            first += len(ids)
        assert set(got[SLOT, idle].tolist()) <= {IDLE} and not got[POSITION, idle].any()
