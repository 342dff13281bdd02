"""What a prompt's attention reads of the paged cache: page numbers, and numbers of eight bits as halves."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

VALUE = 16.0  # values are that much larger than they are


@triton.jit
def held(scale):
    """127 times a scale are the largest half at most."""
    return tl.minimum(scale, 515.0)


@triton.jit
def signed_halves(word, scale, FORM: tl.constexpr):
    """The signed bytes of word int32 times scale float32, as four tensors of float16."""
    if FORM == 1 or FORM == 4:
        return tl.inline_asm_elementwise(
            "{.reg .b16 h; .reg .b32 u, a, b, c, s; xor.b32 u, $4, 0x80808080; cvt.rn.f16.f32 h, $5; mov.b32 s, {h, h};"
            "prmt.b32 a, u, 0x64646464, 0x4140; prmt.b32 b, u, 0x64646464, 0x4342; mov.b32 c, 0x64806480;"
            "sub.rn.f16x2 a, a, c; sub.rn.f16x2 b, b, c; mul.rn.f16x2 a, a, s; mul.rn.f16x2 b, b, s;"
            "mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b;}",
            "=h,=h,=h,=h,r,f", [word, tl.broadcast_to(scale, word.shape)],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        values = ()
        for b in tl.static_range(4):
            code = (word << (24 - 8 * b)) >> 24
            values = values + ((code.to(tl.float32) * scale).to(tl.float16),)
        return values


@triton.jit
def page_number(pointer):
    """A page's number, read as two halves: less than four bytes are not fetched ahead, which would keep what depends on
    it, and all other loads of a loop, from being fetched as far ahead as could be."""
    half = pointer.to(tl.pointer_type(tl.int16))
    return ((tl.load(half + 1).to(tl.int32) << 16) | (tl.load(half).to(tl.int32) & 0xFFFF)).to(tl.int64)
