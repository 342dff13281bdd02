"""Experts that are not in device memory: asked of the CPU's threads while the GPU computes its own.

    route ─► ask: ids, rows of x, bell ─► gate, up, down of what is in slots ─► wait for `done`, add their rows
                     └──────────► threads (csrc/expert_threads.h): the absent experts' rows ──────────┘

All of it lies in a captured graph. Requests are counted, on the device and in the words that both sides see, so nothing
is reset between replays. When no expert of a step's tokens is absent the bell does not ring and nothing waits.
The launch that asks is in link.py, as it brings some of the absent experts itself.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .launch import COLUMNS, power_of_two
from .target import interpreted, release, target, wait

if TYPE_CHECKING:
    from ... import _cpu
    from .stream import ExpertStream

# Words of the mailbox, as csrc/expert_threads.h has them.
BELL, DONE, ERROR, LAYER, TOKENS, READ, WORDS = 0, 16, 32, 48, 49, 50, 112
NAMED, NAMED_LAYER, NAMED_COUNT, NAMES, MOST_NAMES = 64, 65, 66, 67, 12
CAME, CAME_LAYER, CAME_TOKENS = 80, 96, 97
ANSWERED, NOTES = 8, 16  # the device's note of the latest request answered, and how many notes there are
ASKED, NOBODYS = -1, -2  # in place of a slot: the threads were asked; a use that is none
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

    words  int32 [WORDS]: bell, done, error, layer, tokens, number of what they read; number of the latest guess, its
           layer, how many experts it names, and which; of each token the number of x that is there, its layer, tokens
    ids    int32 [16, k], negative where an expert is not asked for
    x      float32 [16, H], what the experts read
    rows   float32 [16·k, H], their outputs
    state  int32 [NOTES] on the device: number of the latest request, that of the one to wait for (0: none), how many of
           1,024 absent experts the GPU fetches itself (link.py), how many at most before a layer asks (foresight.py),
           how many it has fetched so, how many of those were asked for; how long it waited for `done`, by `ticks`, and
           how often; number of the latest request whose rows are there; number of the latest guess, how many
           experts one names at most, and of how many absent ones one is fetched early (foresight.py); whether a layer's
           request is out, so that its fetching may begin (link.py); how many x were written and used
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
            torch.zeros(NOTES, dtype=torch.int32, device=device),
        )

    def threads(self, layers: list[_cpu.ExpertLayer]) -> _cpu.ExpertThreads:
        """Threads that answer what is asked here."""
        from ... import _cpu

        words = self.words.numpy().view("uint32")
        return _cpu.ExpertThreads(words, self.ids.numpy(), self.x.numpy(), self.rows.numpy(), layers)

    @property
    def patience(self) -> int:
        """Looks at `done` before the GPU gives up."""
        return PATIENCE

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
def ticks(looks, FORM: tl.constexpr):
    """A clock, int32 that may wrap: nanoseconds, or `looks` where the device has none."""
    if FORM == 1 or FORM == 4:
        time = tl.inline_asm_elementwise(
            "{.reg .u64 t; mov.u64 t, %globaltimer; cvt.u32.u64 $0, t;}",
            "=r,r", [looks], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        time = looks
    return time


@triton.jit
def first_uses(id, absent, use, USES: tl.constexpr):
    """Of the absent uses: whether one is its expert's first, and which expert it is among the absent ones, int32 [USES]
    both."""
    same = (id[:, None] == id[None, :]) & absent[:, None] & absent[None, :]
    earliest = tl.min(tl.where(same, use[None, :], USES), axis=1)
    fresh = absent & (earliest == use)
    order = tl.cumsum(fresh.to(tl.int32), axis=0) - 1
    return fresh, tl.sum(tl.where(use[None, :] == earliest[:, None], order[None, :], 0), axis=1)


@triton.jit
def ring(
    id, absent, use, inside, words, to_ids, state, layer, tokens, read,
    BELL: tl.constexpr, LAYER: tl.constexpr, TOKENS: tl.constexpr, READ: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Ask the threads for the absent uses, if there are any. They read x with the number `read`."""
    if tl.sum(absent.to(tl.int32), axis=0) > 0:
        tl.store(to_ids + use, tl.where(absent, id, -1), mask=inside)
        tl.store(words + LAYER, layer)
        tl.store(words + TOKENS, tokens)
        tl.store(words + READ, read)
        number = tl.load(state) + 1
        number = tl.where(number == 0, 1, number)  # after 2^32 requests: 0 means none
        tl.debug_barrier()
        tl.store(state, number)
        tl.store(state + 1, number)
        tell(words + BELL, number, FORM)
    else:
        tl.store(state + 1, 0)


@triton.jit
def send(
    x, x_stride, token, words, to_x, layer, tokens, hidden, number,
    CAME: tl.constexpr, CAME_LAYER: tl.constexpr, CAME_TOKENS: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """A token's row of x to the threads, who make it ready while it is found out whether they are asked."""
    at = tl.arange(0, WIDTH)
    row = tl.load(x + token * x_stride + at, mask=at < hidden)
    tl.store(to_x + token * hidden + at, row, mask=at < hidden)
    if token == 0:
        tl.store(words + CAME_LAYER, layer)
        tl.store(words + CAME_TOKENS, tokens)
    tell(words + CAME + token, number, FORM)


@triton.jit
def latest(state):
    """Number of the latest request, 0 if nothing was asked for. What the launch that asked has written is seen by all
    loads after this: the first level cache, which may hold what lay there before, is emptied."""
    return tl.atomic_add(state + 1, 0, sem="acquire", scope="gpu")


@triton.jit
def await_rows(
    number, words, state, first, patience, DONE: tl.constexpr, ERROR: tl.constexpr, ANSWERED: tl.constexpr,
    FORM: tl.constexpr,
):  # fmt: skip
    """Wait until the rows of request `number` are there, if it is one. The program that is `first` looks over the bus,
    and lets the others, who must have room beside it or come later, know."""
    if first:
        tl.store(state + 12, 0)  # the next layer's is not out yet
        tl.store(state + 13, tl.load(state + 13) + 1)
    if number != 0:
        if first:
            left = patience
            began = ticks(left * 0, FORM)
            if look(words + DONE, FORM) != number:
                left = tl.where(look(words + ERROR, FORM) == 0, patience - 1, 0)
                while (left > 0) & (look(words + DONE, FORM) != number):
                    left -= 1
            if left == 0:
                tl.store(words + ERROR, 1, mask=look(words + ERROR, FORM) == 0)
            else:
                tl.atomic_add(state + 6, ticks(patience - left, FORM) - began, sem="relaxed")
                tl.atomic_add(state + 7, 1, sem="relaxed")
            tl.debug_barrier()
            tl.atomic_xchg(state + ANSWERED, number, sem="release", scope="gpu")
        else:
            left = patience * 4
            while (left > 0) & (tl.atomic_add(state + ANSWERED, 0, sem="acquire", scope="gpu") != number):
                left -= 1
            tl.store(words + ERROR, 1, mask=left == 0)  # the first may still be looking, and find them


@triton.jit
def collect_kernel(
    slots, rows, parts, words, state, hidden, patience,
    DONE: tl.constexpr, ERROR: tl.constexpr, ANSWERED: tl.constexpr, ASKED: tl.constexpr, PIECE: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, use): the row of a use that the threads were asked for into parts, once it is there."""
    release(OVERLAP)
    wait(OVERLAP)
    use = tl.program_id(1)
    await_rows(latest(state), words, state, tl.program_id(0) + use == 0, patience, DONE, ERROR, ANSWERED, FORM)
    if tl.load(slots + use) == ASKED:
        at = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
        row = tl.load(rows + use * hidden + at, mask=at < hidden)
        tl.store(parts + use * hidden + at, row, mask=at < hidden)


def collect(away: Away, slots: torch.Tensor, parts: torch.Tensor) -> None:
    """Wait for what was asked for; the rows of such uses into parts [T·k …, H]."""
    box, to, hidden = away.mailbox, target(slots.device), parts.shape[1]
    piece = power_of_two(hidden) if interpreted() else 1024
    collect_kernel[(-(-hidden // piece), slots.numel())](
        slots, box.rows, parts, box.words, box.state, hidden, box.patience,
        DONE=DONE, ERROR=ERROR, ANSWERED=ANSWERED, ASKED=ASKED, PIECE=piece, FORM=to.form, OVERLAP=to.overlap,
        num_warps=1, **to.options,
    )  # fmt: skip
