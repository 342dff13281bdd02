"""Integer products of packed bytes, table look-ups, and float steps with one rounding, in the forms of target.py."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot4(a, b, c, FORM: tl.constexpr):
    """c + Σ of the four products of the signed bytes of a and b."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
        )
    elif FORM == 2:
        return tl.inline_asm_elementwise(
            "v_dot4_i32_i8 $0, $1, $2, $3", "=v,v,v,v", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
        )
    elif FORM == 3:
        return tl.inline_asm_elementwise(
            "v_dot4_i32_iu8 $0, $1, $2, $3 neg_lo:[1,1,0]",
            "=v,v,v,v",
            [a, b, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        low = ((a << 24) >> 24) * ((b << 24) >> 24) + ((a << 16) >> 24) * ((b << 16) >> 24)
        return c + low + ((a << 8) >> 24) * ((b << 8) >> 24) + (a >> 24) * (b >> 24)


@triton.constexpr_function
def dots_asm() -> str:
    """Two products of 16 × 32 and 32 × 8 bytes, added to the sums: operands are those of `tensor_dots`."""
    product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    return (
        "{.reg .b32 c<4>;"
        f"{product} {{c0, c1, c2, c3}}, {{$4, $8, $5, $9}}, {{$12, $13}}, {{$16, $17, $18, $19}};"
        f"{product} {{$0, $1, $2, $3}}, {{$6, $10, $7, $11}}, {{$14, $15}}, {{c0, c1, c2, c3}};}}"
    )


@triton.jit
def tensor_dots(a, b, x, c):
    """c + products of sixteen weights, by tensor cores; all int32 [4 blocks, rows, 4] with four words a thread.

    A warp's lanes are eight rows, four blocks of each (that is what the instruction's operands look like): its sixteen
    rows are those of a and b, a thread's k its own block's sixteen bytes. x is zero but where the block is half the
    row's number in the warp: there, low bytes of a column's block where the row is even, high ones where it is odd.
    So the sums of a thread are of its own block: low and high for a, low and high for b.
    """
    return tl.inline_asm_elementwise(
        dots_asm(), "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r", [a, b, x, c], dtype=tl.int32, is_pure=True, pack=4
    )


@triton.constexpr_function
def look_up_asm(t0: int, t1: int, t2: int, t3: int) -> str:
    """Eight codes of four bits to eight bytes of a table of 16: its eights are looked up and bit 3 chooses."""

    def four(out: str) -> str:
        return (
            f"prmt.b32 l, {t0 & 0xFFFFFFFF}, {t1 & 0xFFFFFFFF}, s;"
            f"prmt.b32 h, {t2 & 0xFFFFFFFF}, {t3 & 0xFFFFFFFF}, s;"
            f"prmt.b32 {out}, l, h, p;"
        )

    return (
        "{.reg .b32 s, p, l, h; and.b32 s, $2, 0x77777777; shr.b32 p, $2, 1; and.b32 p, p, 0x44444444;"
        "or.b32 p, p, 0x32103210;" + four("$0") + "shr.b32 s, s, 16; shr.b32 p, p, 16;" + four("$1") + "}"
    )


@triton.jit
def table_byte(code, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr):
    """Byte number `code` (0 … 15) of the sixteen in T0 … T3, lowest first; in the low byte of the result."""
    low = tl.where((code & 4) != 0, T1, T0)
    high = tl.where((code & 4) != 0, T3, T2)
    word = tl.where((code & 8) != 0, high, low)
    return (word >> ((code & 3) * 8)) & 255


@triton.jit
def look_up(codes, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr, FORM: tl.constexpr):
    """The bytes of a table of 16 for the eight nibbles of `codes`: those of its low half, those of its high half."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            look_up_asm(T0, T1, T2, T3), "=r,=r,r", [codes], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        first = table_byte(codes & 15, T0, T1, T2, T3)
        second = table_byte((codes >> 16) & 15, T0, T1, T2, T3)
        for k in tl.static_range(1, 4):
            first |= table_byte((codes >> (4 * k)) & 15, T0, T1, T2, T3) << (8 * k)
            second |= table_byte((codes >> (16 + 4 * k)) & 15, T0, T1, T2, T3) << (8 * k)
        return first, second


@triton.constexpr_function
def look_up_eight_asm(t0: int, t1: int) -> str:
    """Eight codes below 8, in nibbles, to eight bytes of a table of 8."""
    tables = f"{t0 & 0xFFFFFFFF}, {t1 & 0xFFFFFFFF}"
    return f"{{.reg .b32 s; shr.b32 s, $2, 16; prmt.b32 $0, {tables}, $2; prmt.b32 $1, {tables}, s;}}"


@triton.jit
def look_up_eight(codes, T0: tl.constexpr, T1: tl.constexpr, FORM: tl.constexpr):
    """`look_up` in a table of 8: bit 3 of each nibble is 0."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            look_up_eight_asm(T0, T1), "=&r,=r,r", [codes], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        return look_up(codes, T0, T1, T0, T1, FORM)


@triton.constexpr_function
def addends_asm(t1: int, t3: int) -> str:
    return (
        "{.reg .b32 s, n; xor.b32 n, $4, 0x88888888;"
        f"prmt.b32 $0, $5, {t1 & 0xFFFFFFFF}, $4; prmt.b32 $1, $6, {t3 & 0xFFFFFFFF}, n;"
        "shr.b32 s, $4, 16; shr.b32 n, n, 16;"
        f"prmt.b32 $2, $5, {t1 & 0xFFFFFFFF}, s; prmt.b32 $3, $6, {t3 & 0xFFFFFFFF}, n;}}"
    )


@triton.jit
def look_up_addends(codes, t0, t2, T1: tl.constexpr, T3: tl.constexpr):
    """Two words whose bytes add up to those that `look_up` gives for the low half of `codes`, then for the high half.

    In the form CUDA: for a code below 8 prmt looks up A, for others it spreads A's sign; codes with bit 3 turned do the
    same with B (`kinds._addends`). A third permutation and its selectors are saved; the sums take both words. t0, T1
    are the table A, t2, T3 B; t0 and t2 are made by `in_register`.
    """
    return tl.inline_asm_elementwise(
        addends_asm(T1, T3), "=&r,=&r,=&r,=&r,r,r,r", [codes, t0, t2],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.constexpr_function
def in_register_asm(word: int) -> str:
    return f"{{.reg .b32 s; shr.s32 s, $1, 31; xor.b32 $0, s, {word & 0xFFFFFFFF};}}"


@triton.jit
def in_register(seed, WORD: tl.constexpr):
    """WORD, which the assembler can't take for a constant: prmt has room for one, and the other would be moved into a
    register each time. seed: numbers of the lanes, never negative."""
    return tl.inline_asm_elementwise(in_register_asm(WORD), "=r,r", [seed], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def fma(a, b, c, FORM: tl.constexpr):
    """a·b + c rounded once."""
    if FORM == 0:  # the interpreter's own rounds twice
        return (a.to(tl.float64) * b.to(tl.float64) + c.to(tl.float64)).to(tl.float32)
    else:
        return tl.fma(a, b, c)
