"""Packed codes to halves with few instructions: a byte joins the exponent of 1024, which is taken off again.

Bytes come without a sign: `excess` more than the code. Of a table within ±63 they are looked up in both its halves, of
which the wrong one gives 0, as none of its bytes has the highest bit.
"""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated,no-any-return"

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import unpack_words
from .integer import in_register
from .kinds import bias_of, has_table, is_, table_word


@triton.constexpr_function
def signed_bytes(word: int) -> list[int]:
    return [((word >> shift) & 255 ^ 128) - 128 for shift in (0, 8, 16, 24)]


@triton.constexpr_function
def narrow_table(number: int) -> bool:
    """Whether the type's table lies within ±63."""
    return max(abs(value) for word in range(4) for value in signed_bytes(table_word(number, word))) <= 63


@triton.constexpr_function
def excess(number: int) -> int:
    """How much more than the code the bytes of `plain_bytes` are."""
    if has_table(number):
        return 64 if narrow_table(number) else 128
    return bias_of(number) + (128 if is_(number, "Q8_0", "IQ2_XXS", "IQ2_XS", "IQ2_S") else 0)


@triton.constexpr_function
def lifted(number: int, word: int) -> int:
    """Four bytes of the table, `excess` more, as a signed 32-bit number."""
    found = 0
    for place, value in enumerate(signed_bytes(table_word(number, word))):
        found |= (value + excess(number)) << (8 * place)
    return found - (1 << 32) if found >> 31 else found


@triton.constexpr_function
def either_asm(t1: int, t3: int) -> str:
    """Eight codes $2 to the bytes of a narrow table of 16 that starts with $3, t1, $4, t3."""

    def four(out: str, low: str) -> str:
        return f"prmt.b32 l, $3, {t1 & 0xFFFFFFFF}, {low}; prmt.b32 h, $4, {t3 & 0xFFFFFFFF}, n; or.b32 {out}, l, h;"

    return (
        "{.reg .b32 s, n, l, h; xor.b32 n, $2, 0x88888888;"
        + four("$0", "$2")
        + "shr.b32 s, $2, 16; shr.b32 n, n, 16;"
        + four("$1", "s")
        + "}"
    )


@triton.constexpr_function
def chosen_asm(t1: int, t3: int) -> str:
    """The same of any table: its eights are looked up and bit 3 chooses. $5: 0x32103210, which selects bytes 0 to 3;
    with 4 more in a digit those of the other word."""

    def four(out: str) -> str:
        return f"prmt.b32 l, $3, {t1 & 0xFFFFFFFF}, s; prmt.b32 h, $4, {t3 & 0xFFFFFFFF}, s; prmt.b32 {out}, l, h, p;"

    return (
        "{.reg .b32 s, p, l, h; and.b32 s, $2, 0x77777777; shr.b32 p, $2, 1; and.b32 p, p, 0x44444444; or.b32 p, p, $5;"
        + four("$0")
        + "shr.b32 s, s, 16; shr.b32 p, p, 16;"
        + four("$1")
        + "}"
    )


@triton.jit
def plain_bytes(raw, i, seed, TYPE: tl.constexpr, FORM: tl.constexpr):
    """`blocks.unpack_words`, the bytes without a sign. seed: numbers of the lanes, never negative."""
    if has_table(TYPE):
        t0 = in_register(seed, lifted(TYPE, 0))
        t2 = in_register(seed, lifted(TYPE, 2))
        if narrow_table(TYPE):
            return tl.inline_asm_elementwise(
                either_asm(lifted(TYPE, 1), lifted(TYPE, 3)), "=&r,=r,r,r,r", [raw[0], t0, t2],
                dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
            )  # fmt: skip
        else:
            return tl.inline_asm_elementwise(
                chosen_asm(lifted(TYPE, 1), lifted(TYPE, 3)), "=&r,=r,r,r,r,r",
                [raw[0], t0, t2, in_register(seed, 0x32103210)], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
            )  # fmt: skip
    else:
        w0, w1 = unpack_words(raw, i, TYPE, FORM)
        if is_(TYPE, "Q8_0", "IQ2_XXS", "IQ2_XS", "IQ2_S"):
            w0, w1 = w0 ^ -2139062144, w1 ^ -2139062144
        return w0, w1


@triton.constexpr_function
def halves_asm(over: int, minimum: bool) -> str:
    """Four bytes $4, less `over`, to halves, times $5, plus $6."""
    off = 0x6400 + over
    last = "fma.rn.f16x2 {0}, {0}, $5, $6;" if minimum else "mul.rn.f16x2 {0}, {0}, $5;"
    return (
        "{.reg .b32 a, b, c; prmt.b32 a, $4, 0x64646464, 0x4140; prmt.b32 b, $4, 0x64646464, 0x4342;"
        f"mov.b32 c, {off << 16 | off}; sub.rn.f16x2 a, a, c; sub.rn.f16x2 b, b, c;"
        + last.format("a")
        + last.format("b")
        + "mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b;}"
    )


@triton.jit
def twice(x, FORM: tl.constexpr):
    """x as two equal halves of a word, or as it is where there is no such instruction."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            "{.reg .b16 h; cvt.rn.f16.f32 h, $1; mov.b32 $0, {h, h};}",
            "=r,f",
            [x],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        return x


@triton.jit
def four_halves(word, scale, low, OVER: tl.constexpr, MINIMUM: tl.constexpr, FORM: tl.constexpr):
    """Bytes 0 … 3 of words, less OVER, times scale and low more, both from `twice`: four tensors of float16.

    In the form CUDA bytes have no sign.
    """
    if FORM == 1 or FORM == 4:
        scale = tl.broadcast_to(scale, word.shape)
        if MINIMUM:
            return tl.inline_asm_elementwise(
                halves_asm(OVER, True), "=h,=h,=h,=h,r,r,r", [word, scale, tl.broadcast_to(low, word.shape)],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=1,
            )  # fmt: skip
        else:
            return tl.inline_asm_elementwise(
                halves_asm(OVER, False), "=h,=h,=h,=h,r,r", [word, scale],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=1,
            )  # fmt: skip
    else:
        values = ()
        for b in tl.static_range(4):
            value = scale * (((word << (24 - 8 * b)) >> 24) - OVER).to(tl.float32)
            if MINIMUM:
                value += low
            values = values + (value.to(tl.float16),)
        return values
