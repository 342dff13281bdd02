"""A share of the absent experts over the bus: the GPU reads their blocks from pinned memory into slots of the moment.

    ring: the first few absent experts get spare slots ─► fetch: blocks → staging → planes ─► gate, up, down as of any

The rest is the CPU's at the same time; a share in the mailbox's state makes both end together.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from .away import AHEAD, Link
from .launch import without_overlap
from .repack import BLOCKS, TYPES, form_of, grid_of, repack_tile
from .slots import Slots, SlotShape
from .target import release, target, wait

WORD = 16  # bytes that a thread reads at a time; experts begin and end on it


MOST = 16  # experts fetched in a step of a layer
SPARE = MOST + 2 * AHEAD  # slots of each shape for them, and for what comes early, of two layers
COPIERS = 8  # programs that bring what comes early: few, since the next layer's programs work beside them,
PIECE = 16 << 10  # with as many bytes on their way each as the bus wants together


def fits(shape: SlotShape, addresses: np.ndarray) -> bool:
    """Whether experts of this shape that lie at `addresses` can be fetched."""
    kinds = (shape.gate, shape.up, shape.down)
    whole = all(rows * cols % (32 * BLOCKS) == 0 for rows, cols in shape.sizes)
    tiles = all(BLOCKS * 32 // kind.weights * kind.bytes % WORD == 0 for kind in kinds)
    return whole and tiles and all(kind.name in TYPES for kind in kinds) and not (addresses % WORD).any()


def link_of(shape: SlotShape, addresses: Sequence[np.ndarray], spare: int, device: torch.device) -> list[Link]:
    """How layers of one shape fetch experts: addresses uint64 [experts, 3] of each, SPARE slots from `spare` on."""
    kinds = (shape.gate, shape.up, shape.down)
    size = sum(rows * kind.row_bytes(cols) for kind, (rows, cols) in zip(kinds, shape.sizes, strict=True))
    staging, early = (torch.empty(count, size, dtype=torch.uint8, device=device) for count in (MOST, AHEAD))
    fetched = torch.zeros(1 + MOST, dtype=torch.int32, device=device)
    foreseen = torch.zeros(2, 1 + AHEAD, dtype=torch.int32, device=device)
    made = []
    for number, own in enumerate(addresses):
        places, turn = torch.from_numpy(own.astype(np.int64)).to(device), number % 2
        made.append(Link(places, staging, spare, fetched, spare + MOST + turn * AHEAD, foreseen[turn], early))
    return made


@triton.jit
def fetch_tile(
    source, staging, out, tile, grid, blocks,
    TYPE: tl.constexpr, BYTES: tl.constexpr, EACH: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
    WORDS: tl.constexpr, SUB: tl.constexpr, D: tl.constexpr, EVERY: tl.constexpr, COUNT: tl.constexpr,
    WIDTH: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """A tile of a matrix's blocks from pinned memory to staging, unless it is COPIED, and on to its planes. WIDTH: its
    words, or more."""
    LENGTH: tl.constexpr = COUNT // EACH * BYTES // 4
    if not COPIED:
        at = tl.arange(0, WIDTH)
        from_there = (source + tile.to(tl.int64) * (LENGTH * 4)).to(tl.pointer_type(tl.int32))
        to = (staging + tile.to(tl.int64) * (LENGTH * 4)).to(tl.pointer_type(tl.int32))
        words = tl.load(tl.multiple_of(from_there, 16) + at, mask=at < LENGTH)
        tl.store(tl.multiple_of(to, 16) + at, words, mask=at < LENGTH)
        tl.debug_barrier()
    repack_tile(staging, out, tile, grid, blocks, TYPE, BYTES, EACH, W0, W1, WORDS, SUB, D, EVERY, COUNT)


@triton.jit
def fetch_kernel(
    addresses, fetched, staging, staging_bytes, pool, slot_bytes, spare, up_at, down_at, up_raw, down_raw,
    gate_grid, up_grid, down_grid, gate_tiles, up_tiles, gate_blocks, up_blocks, down_blocks,
    GATE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, GATE_WIDTH: tl.constexpr, UP_WIDTH: tl.constexpr,
    DOWN_WIDTH: tl.constexpr, COPIED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile of gate, up or down, which of the chosen). GATE, UP, DOWN: arguments of `repack_tile`."""
    release(OVERLAP)
    wait(OVERLAP)
    mine = tl.program_id(1)
    if mine < tl.load(fetched):
        place = addresses + tl.load(fetched + 1 + mine) * 3
        raw = staging + mine.to(tl.int64) * staging_bytes
        out = pool + (spare + mine).to(tl.int64) * slot_bytes
        tile = tl.program_id(0)
        if tile < gate_tiles:
            source = tl.load(place).to(tl.pointer_type(tl.uint8))
            fetch_tile(
                source, raw, out, tile, gate_grid, gate_blocks, GATE[0], GATE[1], GATE[2], GATE[3], GATE[4], GATE[5],
                GATE[6], GATE[7], GATE[8], GATE[9], GATE_WIDTH, COPIED,
            )  # fmt: skip
        elif tile < gate_tiles + up_tiles:
            source = tl.load(place + 1).to(tl.pointer_type(tl.uint8))
            fetch_tile(
                source, raw + up_raw, out + up_at, tile - gate_tiles, up_grid, up_blocks, UP[0], UP[1], UP[2], UP[3],
                UP[4], UP[5], UP[6], UP[7], UP[8], UP[9], UP_WIDTH, COPIED,
            )  # fmt: skip
        else:
            source = tl.load(place + 2).to(tl.pointer_type(tl.uint8))
            fetch_tile(
                source, raw + down_raw, out + down_at, tile - gate_tiles - up_tiles, down_grid, down_blocks, DOWN[0],
                DOWN[1], DOWN[2], DOWN[3], DOWN[4], DOWN[5], DOWN[6], DOWN[7], DOWN[8], DOWN[9], DOWN_WIDTH, COPIED,
            )  # fmt: skip


@triton.jit
def copy_kernel(
    addresses, which, staging, staging_bytes, gate_bytes, up_bytes, down_bytes, PIECE: tl.constexpr
):  # fmt: skip
    """Program: every so many pieces of the blocks of which [1 …], which [0] experts, from pinned memory to staging."""
    for mine in range(tl.load(which)):
        place = addresses + tl.load(which + 1 + mine) * 3
        to = staging + tl.zeros([], tl.int64) + mine * staging_bytes
        for part in tl.static_range(3):
            size = gate_bytes if part == 0 else up_bytes if part == 1 else down_bytes
            source = tl.load(place + part).to(tl.pointer_type(tl.uint8))
            for turn in range(tl.cdiv(size - tl.program_id(0) * PIECE, tl.num_programs(0) * PIECE)):
                start = (tl.program_id(0) + turn * tl.num_programs(0)) * PIECE
                at = tl.arange(0, PIECE // 4)
                inside = at < (size - start) // 4
                words = tl.load(
                    tl.multiple_of((source + start).to(tl.pointer_type(tl.int32)), 16) + at, mask=inside
                )  # fmt: skip
                tl.store(tl.multiple_of((to + start).to(tl.pointer_type(tl.int32)), 16) + at, words, mask=inside)
            to += size


def fetch(link: Link, slots: Slots, most: int) -> None:
    """Bring the chosen experts, `most` at most, into the spare slots."""
    _fetch(link, slots, link.fetched, link.staging, link.spare, min(most, MOST), False)


def fetch_ahead(link: Link, slots: Slots) -> None:
    """Bring those that the layer will probably choose. On a stream of its own, beside what is computed."""
    shape = slots.shape
    raw = [
        rows * kind.row_bytes(cols)
        for kind, (rows, cols) in zip((shape.gate, shape.up, shape.down), shape.sizes, strict=True)
    ]
    copy_kernel[(COPIERS,)](
        link.addresses, link.foreseen, link.early, link.early.stride(0), *raw, PIECE=PIECE, num_warps=4,
        **without_overlap(slots.data.device),
    )  # fmt: skip
    _fetch(link, slots, link.foreseen, link.early, link.ahead, AHEAD, True)


def _fetch(
    link: Link, slots: Slots, which: torch.Tensor, staging: torch.Tensor, first: int, most: int, copied: bool
) -> None:
    shape, to = slots.shape, target(slots.data.device)
    kinds, sizes = (shape.gate, shape.up, shape.down), shape.sizes
    forms = [tuple(form_of(kind).values()) for kind in kinds]
    blocks = [rows * cols // 32 for rows, cols in sizes]
    tiles = [count // BLOCKS for count in blocks]
    raw = [rows * kind.row_bytes(cols) for kind, (rows, cols) in zip(kinds, sizes, strict=True)]
    width = [triton.next_power_of_2(BLOCKS * 32 // kind.weights * kind.bytes // 4) for kind in kinds]
    grids = [grid_of(kind.name, slots.data.device) for kind in kinds]
    fetch_kernel[(sum(tiles), most)](
        link.addresses, which, staging, staging.stride(0), slots.data, shape.bytes, first,
        shape.up_at, shape.down_at, raw[0], raw[0] + raw[1], *grids, tiles[0], tiles[1], *blocks,
        GATE=forms[0], UP=forms[1], DOWN=forms[2], GATE_WIDTH=width[0], UP_WIDTH=width[1], DOWN_WIDTH=width[2],
        COPIED=copied, OVERLAP=to.overlap, num_warps=4,
        **(without_overlap(slots.data.device) if copied else to.options),
    )  # fmt: skip
