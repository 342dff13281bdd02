"""Experts that are not in device memory: asked of the CPU's threads while the GPU computes its own.

    route ─► ring: ids, rows of x, bell ─► gate, up, down of what is in slots ─► collect: wait for `done`, copy rows
                     └──────────► threads (csrc/expert_threads.h): the absent experts' rows ──────────┘

All of it lies in a captured graph. Requests are counted, on the device and in the words that both sides see, so nothing
is reset between replays. When no expert of a step's tokens is absent the bell does not ring and nothing waits.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .activation import Quantised
from .launch import COLUMNS, power_of_two, without_overlap
from .target import interpreted, release, target, wait

if TYPE_CHECKING:
    from ... import _cpu
    from .stream import ExpertStream

# Words of the mailbox, as csrc/expert_threads.h has them.
BELL, DONE, ERROR, LAYER, TOKENS, WORDS = 0, 16, 32, 48, 49, 64
AHEAD = 4  # experts of a layer that are fetched before it asks for them, at most (foresight.py)
PATIENCE = 4_000_000  # looks at `done`, about a microsecond each, before the GPU gives up
TROUBLES = {
    1: "the CPU's expert threads did not answer in time",
    2: "an expert did not come into memory in time",
    3: "the GPU asked for an expert that does not exist",
}


@dataclass(frozen=True, slots=True, eq=False)
class Mailbox:
    """Memory that the GPU and the CPU see, pinned where there is a GPU; the device's own notes in `state`.

    words  int32 [64]: bell, done, error, layer, tokens
    ids    int32 [16, k], negative where an expert is not asked for
    x      float32 [16, H], what the experts read
    rows   float32 [16·k, H], their outputs
    state  int32 [8] on the device: number of the latest request, that of the one to wait for (0: none), how many of
           1,024 absent experts the GPU fetches itself (link.py), how many at most before a layer asks (foresight.py),
           how many it has fetched so, how many of those were asked for; looks at `done` that found nothing, and by how
           many programs
    """

    words: torch.Tensor
    ids: torch.Tensor
    x: torch.Tensor
    rows: torch.Tensor
    state: torch.Tensor

    @classmethod
    def of(cls, chosen: int, hidden: int, device: torch.device) -> Mailbox:
        """An empty one for steps of up to 16 tokens with `chosen` experts each."""
        pinned = device.type == "cuda"

        def shared(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, pin_memory=pinned)

        return cls(
            shared(WORDS, dtype=torch.int32),
            shared(COLUMNS, chosen, dtype=torch.int32),
            shared(COLUMNS, hidden, dtype=torch.float32),
            shared(COLUMNS * chosen, hidden, dtype=torch.float32),
            torch.zeros(8, dtype=torch.int32, device=device),
        )

    def threads(self, layers: list[_cpu.ExpertLayer]) -> _cpu.ExpertThreads:
        """Threads that answer what is asked here."""
        from ... import _cpu

        words = self.words.numpy().view("uint32")
        return _cpu.ExpertThreads(words, self.ids.numpy(), self.x.numpy(), self.rows.numpy(), layers)

    @property
    def trouble(self) -> str:
        """Why what was computed can't be trusted; empty if nothing is wrong."""
        return TROUBLES.get(int(self.words[ERROR]), "")


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """What a layer needs to fetch experts itself (link.py).

    addresses  int64 [experts, 3] on the device: where gate, up and down lie in pinned memory
    staging    uint8 [most, bytes of an expert's blocks]
    spare      the first of `most` slots that are nobody's
    fetched    int32 [1 + most] on the device: how many are to be fetched, and which
    ahead      the first of AHEAD slots for what is fetched before the layer asks for it
    foreseen   int32 [1 + AHEAD] on the device: how many those are, and which
    early      staging for them
    """

    addresses: torch.Tensor
    staging: torch.Tensor
    spare: int
    fetched: torch.Tensor
    ahead: int
    foreseen: torch.Tensor
    early: torch.Tensor

    @property
    def most(self) -> int:
        return int(self.staging.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class Away:
    """How a layer reaches its experts that are not in slots.

    layer   its number among the threads' layers
    counts  int32 [experts] on the device: how often each was chosen in steps
    link    how the GPU fetches some of them itself, or None
    stream  brings prompts the experts that have no slot
    """

    layer: int
    mailbox: Mailbox
    counts: torch.Tensor
    link: Link | None = None
    stream: ExpertStream | None = None


@triton.jit
def look(word, FORM: tl.constexpr):
    """A word that the other side writes; what it wrote before is visible afterwards. For programs of one warp.

    A load, since an atomic operation on host memory may write an old value back; by one lane: 32 crowd the bus.
    """
    if FORM == 1 or FORM == 4:
        seen = tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .u32 l; mov.u32 l, %laneid; setp.eq.u32 p, l, 0; mov.u32 $0, 0;"
            "@p ld.acquire.sys.u32 $0, [$1]; shfl.sync.idx.b32 $0, $0, 0, 31, 0xffffffff;"
            "bar.warp.sync 0xffffffff;}",
            "=&r,l", [word.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    return seen


@triton.jit
def tell(word, value, FORM: tl.constexpr):
    """Write a word that the other side looks at, after everything that this program wrote before."""
    tl.debug_barrier()
    if FORM == 1 or FORM == 4:
        tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0;"
            "@p st.release.sys.u32 [$1], $2; mov.u32 $0, $2;}",
            "=r,l,r", [word.to(tl.int64), value], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.atomic_xchg(word, value, sem="release", scope="sys")


@triton.jit
def ring_kernel(
    ids, slots, x, x_stride, words, to_ids, to_x, state, counts, layer, tokens, hidden, fetched, spare, foreseen, ahead,
    BELL: tl.constexpr, LAYER: tl.constexpr, TOKENS: tl.constexpr, USES: tl.constexpr, CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr, MOST: tl.constexpr, AHEAD: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: counts what was chosen; asks for what is absent, if anything is.

    Experts that were foreseen (AHEAD > 0) are there, in slots from `ahead` on. The first of the absent ones, as many as
    `state` says and MOST at most, are left to the GPU: they get slots from `spare` on, and fetched [0] tells how many
    they are, fetched [1 …] which.
    """
    release(OVERLAP)
    wait(OVERLAP)
    use = tl.arange(0, USES)
    inside = use < tokens * CHOSEN
    id = tl.load(ids + use, mask=inside, other=-1)
    tl.atomic_add(counts + id, 1, mask=id >= 0, sem="relaxed")
    absent = (id >= 0) & (tl.load(slots + use, mask=inside, other=0) < 0)
    if AHEAD > 0:
        came = tl.load(foreseen)
        used = 0
        for place in tl.static_range(AHEAD):
            early = absent & (id == tl.load(foreseen + 1 + place)) & (place < came)
            tl.store(slots + use, use * 0 + ahead + place, mask=early)
            used += tl.max(early.to(tl.int32), axis=0)
            absent = absent & ~early
        tl.store(state + 5, tl.load(state + 5) + used)
    if MOST > 0:
        same = (id[:, None] == id[None, :]) & absent[:, None] & absent[None, :]
        earliest = tl.min(tl.where(same, use[None, :], USES), axis=1)
        fresh = absent & (earliest == use)
        order = tl.cumsum(fresh.to(tl.int32), axis=0) - 1
        mine = tl.sum(tl.where(use[None, :] == earliest[:, None], order[None, :], 0), axis=1)
        taken = tl.minimum((tl.sum(fresh.to(tl.int32), axis=0) * tl.load(state + 2) + 512) >> 10, MOST)
        linked = absent & (mine < taken)
        tl.store(slots + use, spare + mine, mask=linked)
        tl.store(fetched + 1 + mine, id, mask=linked)
        tl.store(fetched, taken)
        absent = absent & (mine >= taken)
    if tl.sum(absent.to(tl.int32), axis=0) > 0:
        tl.store(to_ids + use, tl.where(absent, id, -1), mask=inside)
        at = tl.arange(0, WIDTH)
        for token in range(tokens):
            if tl.sum((absent & (use // CHOSEN == token)).to(tl.int32), axis=0) > 0:
                row = tl.load(x + token * x_stride + at, mask=at < hidden)
                tl.store(to_x + token * hidden + at, row, mask=at < hidden)
        tl.store(words + LAYER, layer)
        tl.store(words + TOKENS, tokens)
        number = tl.load(state) + 1
        number = tl.where(number == 0, 1, number)  # after 2^32 requests: 0 means none
        tl.debug_barrier()
        tl.store(state, number)
        tl.store(state + 1, number)
        tell(words + BELL, number, FORM)
    else:
        tl.store(state + 1, 0)


@triton.jit
def collect_kernel(
    ids, slots, rows, parts, words, state, hidden, patience,
    DONE: tl.constexpr, ERROR: tl.constexpr, PIECE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, use): the row of an absent use into parts, once it is there."""
    release(OVERLAP)
    wait(OVERLAP)
    use = tl.program_id(1)
    number = tl.load(state + 1)
    if (number != 0) & (tl.load(slots + use) < 0) & (tl.load(ids + use) >= 0):
        left = tl.where(look(words + ERROR, FORM) == 0, patience, 0)
        while (left > 0) & (look(words + DONE, FORM) != number):
            left -= 1
        if left == 0:
            tl.store(words + ERROR, 1, mask=look(words + ERROR, FORM) == 0)
        elif tl.program_id(0) == 0:
            tl.atomic_add(state + 6, patience - left, sem="relaxed")
            tl.atomic_add(state + 7, 1, sem="relaxed")
        at = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
        row = tl.load(rows + use * hidden + at, mask=at < hidden)
        tl.store(parts + use * hidden + at, row, mask=at < hidden)


def ring(away: Away, x: Quantised, ids: torch.Tensor, slots: torch.Tensor, foreseen: bool = False) -> None:
    """Ask for the absent experts of tokens x [T, H], T up to 16; ids and slots int32 [T, k].

    foreseen: some of them may have come already, by a stream that this one has just waited for.
    """
    box, to, link = away.mailbox, target(ids.device), away.link
    tokens, chosen = ids.shape
    assert tokens <= COLUMNS
    early = link is not None and foreseen
    ring_kernel[(1,)](
        ids, slots, x.x, x.x.stride(0), box.words, box.ids, box.x, box.state, away.counts, away.layer, tokens, x.width,
        ids if link is None else link.fetched, 0 if link is None else link.spare,
        ids if link is None else link.foreseen, 0 if link is None else link.ahead,
        BELL=BELL, LAYER=LAYER, TOKENS=TOKENS, USES=power_of_two(tokens * chosen), CHOSEN=chosen,
        WIDTH=power_of_two(x.width), MOST=0 if link is None else link.most, AHEAD=AHEAD if early else 0, FORM=to.form,
        OVERLAP=to.overlap, num_warps=8, **(without_overlap(ids.device) if foreseen else to.options),
    )  # fmt: skip


def collect(away: Away, ids: torch.Tensor, slots: torch.Tensor, parts: torch.Tensor, joined: bool = False) -> None:
    """Wait for what was asked for; the rows of absent uses into parts [T·k …, H]. joined: this stream has just waited
    for another."""
    box, to, hidden = away.mailbox, target(ids.device), parts.shape[1]
    piece = power_of_two(hidden) if interpreted() else 1024
    collect_kernel[(-(-hidden // piece), ids.numel())](
        ids, slots, box.rows, parts, box.words, box.state, hidden, PATIENCE,
        DONE=DONE, ERROR=ERROR, PIECE=piece, FORM=to.form, OVERLAP=to.overlap, num_warps=1,
        **(without_overlap(ids.device) if joined else to.options),
    )  # fmt: skip
