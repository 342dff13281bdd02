"""Sums that go on from one share of a row to the next: each warp multiplies its own units of the row at once with all
others, and adds them up where the warp before it stopped, so that bits are those of one warp alone.

Tensors are [t 4, g 8, SHARES · EACH]: t + 4·g a lane, the last dimension warps, share · EACH + e. What a warp hands on
lies in shared memory; a barrier of two warps says when it is there, so that a warp waits for the one before alone.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

BARRIERS = tl.constexpr(15)  # that a program has beside the one of all its warps


@triton.constexpr_function
def take_asm() -> str:
    """Four numbers from address $4, once barrier $5 says so; zeros where it is 0. $6 only says where they shall lie."""
    return (
        "{.reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
        "@p bar.sync $5, 64; @p ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];}"
    )


@triton.constexpr_function
def give_asm() -> str:
    """Four numbers to address $1, for who waits at barrier $6; nothing where it is 0."""
    return (
        "{.reg .pred p; setp.ne.s32 p, $6, 0; @p st.shared.v4.b32 [$1], {$2, $3, $4, $5}; @p bar.arrive $6, 64;"
        "mov.b32 $0, 0;}"
    )


@triton.jit
def take(room, barrier, beside):
    """Four tensors of sums as the turn before left them. room: addresses of sixteen bytes; barrier: see `barrier_of`;
    beside: a number that lies as they shall, without which the compiler makes this twice."""
    return tl.inline_asm_elementwise(
        take_asm(), "=&f,=&f,=&f,=&f,r,r,r", [room, barrier, beside],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def give(room, barrier, sums):
    """Leave four tensors of sums to the turn that has this barrier."""
    tl.inline_asm_elementwise(
        give_asm(), "=r,r,f,f,f,f,r", [room, sums[0], sums[1], sums[2], sums[3], barrier], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def barrier_of(turn, e, EACH: tl.constexpr):
    """The barrier of turn `turn` > 0 of warps e; who waits at it has seen all earlier turns with the same one out, as
    there are no more shares than barriers for each e."""
    return 1 + turn % (BARRIERS // EACH) * EACH + e


@triton.jit
def only(sums, share, SHARES: tl.constexpr, EACH: tl.constexpr):
    """The sums of one share's warps for all shares': where there are no barriers, turns are taken by all."""
    here = tl.arange(0, SHARES)[None, None, :, None] == share
    after = ()
    for i in tl.static_range(4):
        x = tl.reshape(sums[i], [4, 8, SHARES, EACH])
        own = tl.sum(tl.where(here, x, 0.0), axis=2)[:, :, None, :]
        after = after + (tl.reshape(tl.broadcast_to(own, [4, 8, SHARES, EACH]), [4, 8, SHARES * EACH]),)
    return after
