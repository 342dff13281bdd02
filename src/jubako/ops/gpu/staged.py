"""A column of bytes in a program's room (room.py), where lanes find it without waiting behind weights on their way.

It lies there as planes of its low codes, sixteen bytes a half block, then its blocks' scales and, if they are asked
for, the sums of their halves: PADDED blocks, whole units, of which those behind the last have scales of zero.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .room import by_hand, leave


@triton.constexpr_function
def column_words(padded: int, sums: bool) -> int:
    """Words that a column takes."""
    return padded * (11 if sums else 9)


@triton.jit
def shut(room, FORM: tl.constexpr):
    """A barrier, and the room behind it: what is found from this address on stays behind."""
    tl.debug_barrier()
    if by_hand(FORM):
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [room], dtype=tl.int32, is_pure=False, pack=1)
    else:
        return room


@triton.jit
def sixteen(room, at, FORM: tl.constexpr):
    """Words `at` [.., 4] of a room that is shut, int32: a thread has four that follow each other, as with weights
    (tools/compile_kernels.py makes sure)."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r,r,r,r", [room + at * 4], dtype=tl.int32,
            is_pure=True, pack=4,
        )  # fmt: skip
    else:
        return tl.load(room + at)


@triton.jit
def word(room, at, FORM: tl.constexpr):
    """Words `at` of a room that is shut, int32."""
    if by_hand(FORM):
        return tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=r,r", [room + at * 4], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.load(room + at)


@triton.jit
def fetch_column(x, token, PADDED: tl.constexpr, SUMS: tl.constexpr):
    """A token's column on its way, for `leave_column`. x: (q, d, s, numbers, blocks, valid) of a `Quantised`."""
    q, d, s, numbers, blocks, valid = x
    i = tl.arange(0, triton.next_power_of_2(PADDED * 8))
    place = token * 4 * blocks * 4 + i % (PADDED * 4) + tl.where(i < PADDED * 4, 0, blocks * 4)
    codes = tl.load(q.to(tl.pointer_type(tl.int32)) + place, mask=i < PADDED * 8, other=0)
    block = tl.arange(0, triton.next_power_of_2(PADDED))
    scales = tl.load(d + token * blocks + block, mask=(block < valid) & (block < PADDED), other=0.0)
    first, second = block, block
    if SUMS:
        first = tl.load(s + token * 2 * blocks + block, mask=block < PADDED, other=0)
        second = tl.load(s + (token * 2 + 1) * blocks + block, mask=block < PADDED, other=0)
    return codes, scales, first, second


@triton.jit
def leave_column(room, column, PADDED: tl.constexpr, SUMS: tl.constexpr, FORM: tl.constexpr):
    """Put `fetch_column` into a room; gives the room, shut."""
    codes, scales, first, second = column
    i = tl.arange(0, triton.next_power_of_2(PADDED * 8))
    leave(room, i, codes, i < PADDED * 8, FORM)
    block = tl.arange(0, triton.next_power_of_2(PADDED))
    leave(room, PADDED * 8 + block, scales, block < PADDED, FORM)
    if SUMS:
        leave(room, PADDED * 9 + block, first, block < PADDED, FORM)
        leave(room, PADDED * 10 + block, second, block < PADDED, FORM)
    return shut(room, FORM)


@triton.jit
def staged_column(room, lanes, unit, PADDED: tl.constexpr, SUMS: tl.constexpr, FORM: tl.constexpr):
    """What `single.single_column` gives, of a column in a room. lanes: zeros [1, rows, 1]."""
    j = tl.arange(0, 8)[:, None, None] + (lanes + unit * 8)
    at = j * 4 + tl.arange(0, 4)[None, None, :]
    a = sixteen(room, at, FORM)
    b = sixteen(room, at + PADDED * 4, FORM)
    few = j + PADDED * 8
    scale = word(room, few, FORM).to(tl.float32, bitcast=True)
    first, second = few, few
    if SUMS:
        first = word(room, few + PADDED, FORM)
        second = word(room, few + PADDED * 2, FORM)
    return a, b, a, b, scale, first, second
