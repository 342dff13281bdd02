"""A share of the absent experts over the bus: the GPU reads their blocks from pinned memory into slots of the moment.

    ask: the first few absent experts get spare slots: blocks → staging → planes ─► gate, up, down as of any

The rest is the CPU's at the same time; a share in the mailbox's state makes both end together.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .activation import Quantised
from .away import (
    AHEAD,
    ASKED,
    BELL,
    CAME,
    CAME_LAYER,
    CAME_TOKENS,
    LAYER,
    NOBODYS,
    READ,
    TOKENS,
    Away,
    Link,
    first_uses,
    ring,
    send,
)
from .launch import COLUMNS, power_of_two, without_overlap
from .repack import BLOCKS, TYPES, form_of, grid_of, repack_tile
from .slots import Slots, SlotShape
from .target import interpreted, release, target, wait

WORD = 16  # bytes that a thread reads at a time; experts begin and end on it
MOST = 16  # experts fetched in a step of a layer
SPARE = MOST + 2 * AHEAD  # slots of each shape for them, and for what comes early, of two layers
COPIERS = 8  # programs that bring what comes early: few, since the next layer's programs work beside them,
PIECE = 16 << 10  # with as many bytes on their way each as the bus wants together
FETCHERS = 264  # programs that bring what a layer lacks
TURNS = 64  # looks at whether the threads have been asked, a microsecond each, before they begin anyway


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
def fetch_part(
    place, raw, out, tile, up_at, down_at, up_raw, down_raw, gate_grid, up_grid, down_grid, gate_tiles, up_tiles,
    gate_blocks, up_blocks, down_blocks,
    GATE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, GATE_WIDTH: tl.constexpr, UP_WIDTH: tl.constexpr,
    DOWN_WIDTH: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """A tile of gate, up or down of the expert whose matrices lie at `place` [3]. GATE, UP, DOWN: arguments of
    `repack_tile`."""
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
def fetch_kernel(
    addresses, fetched, staging, staging_bytes, pool, slot_bytes, first, tiles, up_at, down_at, up_raw, down_raw,
    gate_grid, up_grid, down_grid, gate_tiles, up_tiles, gate_blocks, up_blocks, down_blocks,
    GATE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, GATE_WIDTH: tl.constexpr, UP_WIDTH: tl.constexpr,
    DOWN_WIDTH: tl.constexpr, COPIED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program: every so many tiles of experts fetched [1 …], which are fetched [0], into slots from `first` on."""
    release(OVERLAP)
    wait(OVERLAP)
    for job in range(tl.program_id(0), tl.load(fetched) * tiles, tl.num_programs(0)):
        mine = job // tiles
        place = addresses + tl.load(fetched + 1 + mine) * 3
        fetch_part(
            place, staging + mine.to(tl.int64) * staging_bytes, pool + (first + mine).to(tl.int64) * slot_bytes,
            job % tiles, up_at, down_at, up_raw, down_raw, gate_grid, up_grid, down_grid, gate_tiles, up_tiles,
            gate_blocks, up_blocks, down_blocks, GATE, UP, DOWN, GATE_WIDTH, UP_WIDTH, DOWN_WIDTH, COPIED,
        )  # fmt: skip


@triton.jit
def ask_kernel(
    ids, slots, placed, x, x_stride, words, to_ids, to_x, state, counts, layer, tokens, hidden, foreseen, ahead,
    addresses, fetched, staging, staging_bytes, pool, slot_bytes, first, tiles, up_at, down_at, up_raw, down_raw,
    gate_grid, up_grid, down_grid, gate_tiles, up_tiles, gate_blocks, up_blocks, down_blocks,
    BELL: tl.constexpr, LAYER: tl.constexpr, TOKENS: tl.constexpr, READ: tl.constexpr, CAME: tl.constexpr,
    CAME_LAYER: tl.constexpr, CAME_TOKENS: tl.constexpr, ASKED: tl.constexpr, NOBODYS: tl.constexpr,
    USES: tl.constexpr, CHOSEN: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr, AHEAD: tl.constexpr,
    TURNS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
    GATE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, GATE_WIDTH: tl.constexpr, UP_WIDTH: tl.constexpr,
    DOWN_WIDTH: tl.constexpr,
):  # fmt: skip
    """Program 0 counts what was chosen and asks the threads for what is absent, if anything is; those after it send the
    tokens' rows of x, and all but the first fetch.

    Experts that were foreseen (AHEAD > 0) are in slots from `ahead` on, or on their way there. The first of the absent
    ones, as many as `state` says and MOST at most, are left to the GPU and get slots from `first` on; fetched [0] tells
    how many they are, fetched [1 …] which. placed [T, k] are the slots as they are then, or why a use has none.
    """
    wait(OVERLAP)
    number = tl.load(state + 13) * 2 + 1  # never 0
    if (tl.program_id(0) > 0) & (tl.program_id(0) <= tokens):
        release(OVERLAP)
        send(
            x, x_stride, tl.program_id(0) - 1, words, to_x, layer, tokens, hidden, number, CAME, CAME_LAYER,
            CAME_TOKENS, WIDTH, FORM,
        )  # fmt: skip
    use = tl.arange(0, USES)
    inside = use < tokens * CHOSEN
    id = tl.load(ids + use, mask=inside, other=-1)
    slot = tl.load(slots + use, mask=inside, other=0)
    absent = (id >= 0) & (slot < 0)
    slot = tl.where(id >= 0, tl.maximum(slot, ASKED), NOBODYS)
    used = 0
    if AHEAD > 0:
        came = tl.load(foreseen)
        for place in tl.static_range(AHEAD):
            early = absent & (id == tl.load(foreseen + 1 + place)) & (place < came)
            slot = tl.where(early, ahead + place, slot)
            used += tl.max(early.to(tl.int32), axis=0)
            absent = absent & ~early
    fresh, mine, taken = absent, use, 0
    if MOST > 0:
        fresh, mine = first_uses(id, absent, use, USES)
        taken = tl.minimum((tl.sum(fresh.to(tl.int32), axis=0) * tl.load(state + 2) + 512) >> 10, MOST)
        slot = tl.where(absent & (mine < taken), first + mine, slot)
    # While this one fetches, programs of what follows would wait where those that name the next layer's find room
    if taken == 0:
        release(OVERLAP)
    if tl.program_id(0) == 0:
        tl.store(placed + use, slot, mask=inside)
        tl.atomic_add(counts + id, 1, mask=id >= 0, sem="relaxed")
        if AHEAD > 0:
            tl.store(state + 5, tl.load(state + 5) + used)
        if MOST > 0:
            tl.store(fetched + 1 + mine, id, mask=fresh & (mine < taken))
            tl.store(fetched, taken)
            absent = absent & (mine >= taken)
        ring(
            id, absent, use, inside, words, to_ids, state, layer, tokens, number, BELL, LAYER, TOKENS, READ, FORM,
        )  # fmt: skip
        if taken > 0:
            tl.debug_barrier()
            tl.atomic_xchg(state + 12, 1, sem="release", scope="gpu")
    elif MOST > 0:
        if taken > 0:  # what is written to the bus stands behind what is read from it, so the threads are asked first
            left = TURNS
            while (left > 0) & (tl.atomic_add(state + 12, 0, sem="relaxed", scope="gpu") == 0):
                left -= 1
        for job in range(tl.program_id(0) - 1, taken * tiles, tl.num_programs(0) - 1):
            turn = job // tiles
            at = addresses + tl.sum(tl.where(fresh & (mine == turn), id, 0), axis=0) * 3
            fetch_part(
                at, staging + turn.to(tl.int64) * staging_bytes, pool + (first + turn).to(tl.int64) * slot_bytes,
                job % tiles, up_at, down_at, up_raw, down_raw, gate_grid, up_grid, down_grid, gate_tiles, up_tiles,
                gate_blocks, up_blocks, down_blocks, GATE, UP, DOWN, GATE_WIDTH, UP_WIDTH, DOWN_WIDTH, False,
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


def ask(
    away: Away, mine: Slots, x: Quantised, ids: torch.Tensor, slots: torch.Tensor, foreseen: bool = False
) -> torch.Tensor:
    """Ask for the absent experts of tokens x [T, H], T up to 16, and bring some; ids and slots int32 [T, k]. Returns
    the slots as they will be when all that was launched before is done, or why a use has none.

    foreseen: some of them may come by another stream.
    """
    box, to, link = away.mailbox, target(ids.device), away.link
    tokens, chosen = ids.shape
    assert tokens <= COLUMNS
    placed = torch.empty_like(slots)
    if link is None:  # nothing can be fetched
        sizes, forms = (ids, ids, ids, 0, ids, 0, 0, 1, *[0] * 4, ids, ids, ids, *[0] * 5), _NO_FORMS
    else:
        sizes, forms = _sizes(link, mine, link.fetched, link.staging, link.spare), _forms(mine.shape)
    fetchers = 0 if link is None else 2 if interpreted() else FETCHERS
    ask_kernel[(1 + max(tokens, fetchers),)](
        ids, slots, placed, x.x, x.x.stride(0), box.words, box.ids, box.x, box.state, away.counts, away.layer, tokens,
        x.width, ids if link is None else link.foreseen, 0 if link is None else link.ahead, *sizes,
        BELL=BELL, LAYER=LAYER, TOKENS=TOKENS, READ=READ, CAME=CAME, CAME_LAYER=CAME_LAYER, CAME_TOKENS=CAME_TOKENS,
        ASKED=ASKED, NOBODYS=NOBODYS, USES=power_of_two(tokens * chosen),
        CHOSEN=chosen, WIDTH=power_of_two(x.width), MOST=0 if link is None else link.most,
        AHEAD=AHEAD if foreseen and link is not None else 0, TURNS=TURNS, FORM=to.form, OVERLAP=to.overlap,
        num_warps=4 if tokens * chosen <= 64 else 8, **forms, **to.options,
    )  # fmt: skip
    return placed


def fetch(link: Link, slots: Slots) -> None:
    """Bring the experts that `link.fetched` names into the spare slots."""
    _fetch(link, slots, link.fetched, link.staging, link.spare, False)


def fetch_ahead(link: Link, slots: Slots) -> None:
    """Bring those that the layer will probably choose. On a stream of its own, beside what is computed."""
    copy_kernel[(COPIERS,)](
        link.addresses, link.foreseen, link.early, link.early.stride(0), *_bytes(slots.shape), PIECE=PIECE,
        num_warps=4, **without_overlap(slots.data.device),
    )  # fmt: skip
    _fetch(link, slots, link.foreseen, link.early, link.ahead, True)


def _fetch(link: Link, slots: Slots, which: torch.Tensor, staging: torch.Tensor, first: int, copied: bool) -> None:
    to = target(slots.data.device)
    fetch_kernel[(2 if interpreted() else FETCHERS,)](
        *_sizes(link, slots, which, staging, first), COPIED=copied, OVERLAP=to.overlap, num_warps=4,
        **_forms(slots.shape), **(without_overlap(slots.data.device) if copied else to.options),
    )  # fmt: skip


def _bytes(shape: SlotShape) -> list[int]:
    """Of gate, up and down as they lie in a file."""
    kinds = (shape.gate, shape.up, shape.down)
    return [rows * kind.row_bytes(cols) for kind, (rows, cols) in zip(kinds, shape.sizes, strict=True)]


def _sizes(link: Link, slots: Slots, which: torch.Tensor, staging: torch.Tensor, first: int) -> tuple[Any, ...]:
    """What `fetch_kernel` is told: where experts `which` come from and go to, and how they are cut."""
    shape = slots.shape
    blocks = [rows * cols // 32 for rows, cols in shape.sizes]
    tiles, raw = [count // BLOCKS for count in blocks], _bytes(shape)
    grids = [grid_of(kind.name, slots.data.device) for kind in (shape.gate, shape.up, shape.down)]
    return (
        link.addresses, which, staging, staging.stride(0), slots.data, shape.bytes, first, sum(tiles),
        shape.up_at, shape.down_at, raw[0], raw[0] + raw[1], *grids, tiles[0], tiles[1], *blocks,
    )  # fmt: skip


def _forms(shape: SlotShape) -> dict[str, Any]:
    kinds = {"GATE": shape.gate, "UP": shape.up, "DOWN": shape.down}
    width = {name: power_of_two(BLOCKS * 32 // kind.weights * kind.bytes // 4) for name, kind in kinds.items()}
    forms = {name: tuple(form_of(kind).values()) for name, kind in kinds.items()}
    return forms | {f"{name}_WIDTH": size for name, size in width.items()}


_NO_FORMS = {name: (0,) * 10 for name in ("GATE", "UP", "DOWN")} | {
    f"{name}_WIDTH": 1 for name in ("GATE", "UP", "DOWN")
}
