"""Uses of experts in the order of the experts, in tiles of one expert each: counted on the device, for prompts.

The order of one expert's uses is left open: where a use stands in a tile changes no bit of it.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PIECE = 256  # uses of a program


@dataclass(frozen=True, slots=True)
class Tiles:
    """uses int32 [T·k] sorted by expert; of each tile int32: its expert (-1: none), its first and last place there."""

    uses: torch.Tensor
    expert: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


@triton.jit(do_not_specialize=["total"])
def rank_kernel(ids, ranks, counts, total, PIECE: tl.constexpr):
    """How many uses of the same expert came before each, in any order, and how many there are of each expert."""
    use = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    there = use < total
    id = tl.load(ids + use, mask=there, other=0)
    tl.store(ranks + use, tl.atomic_add(counts + id, 1, mask=there, sem="relaxed"), mask=there)


@triton.jit(do_not_specialize=["experts", "tiles"])
def tile_kernel(
    counts, starts, expert, first, last, experts, tiles, TILE: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Where each expert's uses start, and the tiles."""
    e = tl.arange(0, SIZE)
    count = tl.load(counts + e, mask=e < experts, other=0)
    start = tl.cumsum(count, 0) - count
    tl.store(starts + e, start, mask=e < experts)
    mine = (count + TILE - 1) // TILE
    tile = tl.cumsum(mine, 0) - mine
    used = tl.sum(mine, 0)
    for idle in range(used, tiles, SIZE):
        tl.store(expert + idle + e, tl.zeros([SIZE], tl.int32) - 1, mask=idle + e < tiles)
    for k in range(0, tl.max(mine, 0)):
        live = k < mine
        tl.store(expert + tile + k, e, mask=live)
        tl.store(first + tile + k, start + k * TILE, mask=live)
        tl.store(last + tile + k, tl.minimum(start + (k + 1) * TILE, start + count), mask=live)


@triton.jit(do_not_specialize=["total"])
def sort_kernel(ids, ranks, starts, uses, total, PIECE: tl.constexpr):
    """Every use to its place."""
    use = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    there = use < total
    id = tl.load(ids + use, mask=there, other=0)
    place = tl.load(starts + id, mask=there, other=0) + tl.load(ranks + use, mask=there, other=0)
    tl.store(uses + place, use, mask=there)


def tiles_of(ids: torch.Tensor, experts: int, tile: int) -> Tiles:
    """Tiles of `tile` uses of one expert each. ids int32 [T, k], all of them experts; nothing waits for the host."""
    device, total = ids.device, ids.numel()
    tiles = total // tile + min(experts, total)
    counts = torch.zeros(experts, dtype=torch.int32, device=device)
    ranks, uses = _lists(2, total, device)
    starts = torch.empty_like(counts)
    expert, first, last = _lists(3, tiles, device)
    pieces = -(-total // PIECE)
    rank_kernel[(pieces,)](ids, ranks, counts, total, PIECE=PIECE, num_warps=4)
    tile_kernel[(1,)](
        counts, starts, expert, first, last, experts, tiles,
        TILE=tile, SIZE=triton.next_power_of_2(experts), num_warps=4,
    )  # fmt: skip
    sort_kernel[(pieces,)](ids, ranks, starts, uses, total, PIECE=PIECE, num_warps=4)
    return Tiles(uses, expert, first, last)


def _lists(count: int, length: int, device: torch.device) -> torch.Tensor:
    """Room for int32 [count, length]; each begins on sixteen bytes, else kernels would be compiled twice."""
    return torch.empty(count, -(-length // 4) * 4, dtype=torch.int32, device=device)[:, :length]
