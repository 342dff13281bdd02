"""Words that the lanes of a program leave for one another, with one barrier in between: in shared memory of which the
compiler knows nothing, as its own ways from one order of lanes to another take several barriers each. tools/rooms.py
holds kernels to theirs.

Elsewhere than on CUDA (AMD's cards, the interpreter) they lie in a tensor.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import CUDA, TENSOR, Target


@triton.constexpr_function
def by_hand(form: int) -> bool:
    """Whether shared memory is at hand."""
    return form in (1, 4)


@triton.constexpr_function
def room_asm(words: int) -> str:
    return f"{{.shared .align 16 .b32 room[{words}]; mov.u32 $0, room;}}"


@triton.jit
def own_room(elsewhere, program, WORDS: tl.constexpr, FORM: tl.constexpr):
    """Room for WORDS words of a program: an address, or a pointer into `elsewhere` int32 [programs, WORDS]."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            room_asm(WORDS),
            "=r,r",
            [program],
            dtype=tl.int32,
            is_pure=False,
            pack=1,  # one for all that ask
        )
    else:
        return elsewhere + program * WORDS


def elsewhere(to: Target, programs: int, words: int, device: torch.device) -> torch.Tensor:
    """What `own_room` wants: nothing where shared memory is at hand."""
    size = 0 if to.form in (CUDA, TENSOR) else programs * words
    return torch.empty(size, dtype=torch.int32, device=device)


@triton.jit
def moved(room, words, FORM: tl.constexpr):
    """The room that begins `words` words on."""
    return room + (words * 4 if by_hand(FORM) else words)


@triton.jit
def leave(room, at, x, live, FORM: tl.constexpr):
    """Put 32-bit x at words `at` of a room, where live."""
    if by_hand(FORM):
        tl.inline_asm_elementwise(
            "{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.shared.b32 [$1], $2; mov.b32 $0, 0;}", "=r,r,r,r",
            [room + at * 4, x.to(tl.int32, bitcast=True), live.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(room + at, x.to(tl.int32, bitcast=True), mask=live)


@triton.jit
def leave_bytes(room, at, x, FORM: tl.constexpr):
    """Put the low bytes of int32 x at bytes `at` of a room."""
    if by_hand(FORM):
        tl.inline_asm_elementwise(
            "st.shared.b8 [$1], $2; mov.b32 $0, 0;", "=r,r,r", [room + at, x], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.store(room.to(tl.pointer_type(tl.int8)) + at, x.to(tl.int8))


@triton.jit
def found(room, at, FORM: tl.constexpr):
    """Words `at` of a room, as float32; behind a barrier, as the others."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=f,r", [room + at * 4], dtype=tl.float32, is_pure=False, pack=1
        )
    else:
        return tl.load(room + at).to(tl.float32, bitcast=True)


@triton.jit
def found_two(room, at, FORM: tl.constexpr):
    """Two words from `at` on, an even number, of a room, as int32."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", [room + at * 4], dtype=(tl.int32, tl.int32), is_pure=False,
            pack=1,
        )  # fmt: skip
    else:
        return tl.load(room + at), tl.load(room + at + 1)


@triton.jit
def found_four(room, at, FORM: tl.constexpr):
    """Four words from `at` on, a multiple of four, of a room, as int32."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", [room + at * 4],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
        )  # fmt: skip
    else:
        return tl.load(room + at), tl.load(room + at + 1), tl.load(room + at + 2), tl.load(room + at + 3)


@triton.jit
def added(values):
    """The sum of a tuple, neighbours first: halves of it that were added up before give the same bits."""
    COUNT: tl.constexpr = len(values)
    if COUNT == 1:
        return values[0]
    else:
        pairs = ()
        for i in tl.static_range(COUNT // 2):
            pairs = pairs + (values[2 * i] + values[2 * i + 1],)
        if COUNT % 2 == 1:
            pairs = pairs + (values[COUNT - 1],)
        return added(pairs)
