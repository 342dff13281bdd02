"""What products of tiles with columns of floats are made of, which become sixteen-bit codes on the way.

Codes are those of `activation.Quantised` but for the last bit of scales; tensors lie as in tensor.py: [t 4, g 8, w],
t + 4·g a lane, w warps. Lane g = (column, low or high bytes), thread t has weights 8t to 8t + 7 of a block.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from .activation import rounded
from .integer import dot4
from .kinds import has_width
from .room import by_hand, leave
from .tensor import plain_dot


@triton.constexpr_function
def dot_asm() -> str:
    """Sums of a block for a row and the one eight below, of two words each and two of a column."""
    return (
        "{.reg .b32 z, c<4>; mov.b32 z, 0;"
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {c0, c1, c2, c3}, {$2, $4, $3, $5}, {$6, $7}, {z, z, z, z};"
        "mad.lo.s32 $0, c1, 256, c0; mad.lo.s32 $1, c3, 256, c2;}"
    )


@triton.jit
def block_dot(row, below, x, FORM: tl.constexpr):
    """`tensor.block_dots` of one block: int32 [column 4, g, w] for rows and for those eight below."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            dot_asm(), "=r,=r,r,r,r,r,r,r", [row[0], row[1], below[0], below[1], x[0], x[1]],
            dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return plain_dot(row[0], row[1], x[0], x[1], FORM), plain_dot(below[0], below[1], x[0], x[1], FORM)


@triton.jit
def quick_inverse(x, FORM: tl.constexpr):
    """32385 / x within a few units in the last place."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            "{.reg .f32 r; rcp.approx.ftz.f32 r, $1; mul.f32 $0, r, 0f46FD0200;}", "=f,f", [x], dtype=tl.float32,
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.where(x > 0, 32385.0 / tl.where(x > 0, x, 1.0), float("inf"))


@triton.constexpr_function
def pack_asm() -> str:
    """The bytes that $7 selects of four numbers times $5, rounded by adding $6."""
    return (
        "{.reg .b32 a, b, c, d; fma.rn.f32 a, $1, $5, $6; fma.rn.f32 b, $2, $5, $6; fma.rn.f32 c, $3, $5, $6;"
        "fma.rn.f32 d, $4, $5, $6; prmt.b32 a, a, b, $7; prmt.b32 c, c, d, $7; prmt.b32 $0, a, c, 0x5410;}"
    )


@triton.jit
def code_byte(x, inverse, high):
    """The low or high byte of a number's code."""
    q = rounded(x * inverse)
    code = tl.where(q == q, q, 0.0).to(tl.int32)
    return tl.where(high, (code + 128) >> 8, code) & 255


@triton.jit
def pack(x, inverse, magic, select, FORM: tl.constexpr):
    """One byte of the codes of four numbers: a word. magic, select: `parts_of_codes`."""
    if FORM == 4:
        return tl.inline_asm_elementwise(
            pack_asm(), "=r,f,f,f,f,f,f,r", [x[0], x[1], x[2], x[3], inverse, magic, select], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        high = select != 0x40
        word = code_byte(x[0], inverse, high) | (code_byte(x[1], inverse, high) << 8)
        return word | (code_byte(x[2], inverse, high) << 16) | (code_byte(x[3], inverse, high) << 24)


@triton.jit
def parts_of_codes(g):
    """What lanes of low and of high bytes add to round, and which bytes they take."""
    high = g % 2 == 1
    return tl.where(high, 12582912.0 + 128.0, 12582912.0), tl.where(high, 0x51, 0x40)


@triton.jit
def sum_of_bytes(word, FORM: tl.constexpr):
    """Of a word's four signed bytes."""
    return dot4(word, tl.full(word.shape, 0x01010101, tl.int32), tl.zeros(word.shape, tl.int32), FORM)


@triton.jit
def larger(a, b):
    """The larger magnitude; a NaN is the largest."""
    return tl.maximum(tl.abs(a), tl.abs(b), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def hold(size, FORM: tl.constexpr):
    """Loads in front are on their way before anything behind: the assembler moves nothing across a branch. size: never
    negative, which it can't know; one that may be 1 is a constant where it is."""
    if FORM == 4:
        tl.inline_asm_elementwise(
            "{.reg .pred p; setp.lt.s32 p, $1, 0; @p trap; mov.b32 $0, 0;}", "=r,r", [size], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip


@triton.constexpr_function
def makes_late(columns: int, number: int) -> bool:
    """Whether a mix makes its weights' codes and factors while its streams are on their way, not before it waits:
    packed ones, for several columns, whose loads are many."""
    return columns > 1 and not has_width(number, 8)


@triton.jit
def bits_of(values):
    """Some number that takes all of a tuple."""
    every = values[0].to(tl.int32, bitcast=True)
    for i in tl.static_range(1, len(values)):
        every ^= values[i].to(tl.int32, bitcast=True)
    return every


@triton.jit
def have_made(codes, factors, room, size, FORM: tl.constexpr):
    """Codes and factors, numbers of the lanes, are made in front of this: the assembler would make them where they are
    wanted. size: never negative, which it can't know; so nothing is left in the room."""
    if FORM == 4:
        every = tl.zeros(codes[0][0][0].shape, tl.int32)
        for i in tl.static_range(len(codes)):
            every ^= bits_of(codes[i][0]) ^ bits_of(codes[i][1])
        for i in tl.static_range(len(factors)):
            every ^= bits_of(factors[i][0]) ^ bits_of(factors[i][1])
        leave(room, 0, every, size < 0, FORM)


@triton.constexpr_function
def put_asm(bits: int) -> str:
    return f"{{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.b{bits} [$1], $2; mov.b32 $0, 0;}}"


@triton.jit
def put(at, x, live, FORM: tl.constexpr):
    """Store x where live, from where it lies: the compiler's own stores would first bring it into another order,
    through shared memory and two barriers each."""
    BITS: tl.constexpr = at.dtype.element_ty.primitive_bitwidth
    if by_hand(FORM):
        there = live.to(tl.int32)
        bits = x.to(tl.int32, bitcast=True)
        tl.inline_asm_elementwise(
            put_asm(BITS), "=r,l,r,r", [at.to(tl.int64), bits, there], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.store(at, x.to(at.dtype.element_ty), mask=live)
