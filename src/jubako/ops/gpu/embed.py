"""Weights as numbers: rows by their ids, and whole matrices for the libraries' products."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import factors, fetch, unpack
from .kinds import bias_of, minimum_of, number_bytes, scales_of
from .matrix import Matrix
from .products import fetch_numbers, plain
from .table import HostTable, rows_of
from .target import release, target, wait


@triton.jit
def byte(codes, b: tl.constexpr, BIAS: tl.constexpr, SIGNED: tl.constexpr):
    """Byte b of packed codes less their bias, as float32."""
    if SIGNED:
        return ((codes << (24 - 8 * b)) >> 24).to(tl.float32)
    else:
        return (((codes >> (8 * b)) & 255) - BIAS).to(tl.float32)


@triton.jit
def unit_numbers(raw, scale, row, KIND: tl.constexpr, TYPE: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr):
    """A unit of `row` [1, rows, 1] that `fetch` gave, as numbers of type KIND: two of [8, rows, 16], the halves of its
    blocks."""
    w0, w1 = unpack(raw, TYPE, FORM)
    factor, s0, s1, offset, m0, m1 = factors(raw, TYPE)
    halves = ()
    for half in tl.static_range(2):
        codes = w0 if half == 0 else w1
        f = factor
        if scales_of(TYPE) == 1:
            f = factor * (s0 if half == 0 else s1)
        elif scales_of(TYPE) == 2:
            f = s0 if half == 0 else s1
        low = offset
        if minimum_of(TYPE) == 2:
            low = offset * (m0 if half == 0 else m1)
        values = ()
        for b in tl.static_range(4):
            value = f * byte(codes, b, bias_of(TYPE), bias_of(TYPE) == 0)
            if minimum_of(TYPE) > 0:
                value += low
            if SCALED:
                value *= tl.load(scale + row)
            values = values + (value.to(KIND),)
        every = tl.join(tl.join(values[0], values[2]), tl.join(values[1], values[3]))
        halves = halves + (tl.reshape(every, [8, codes.shape[1], 16]),)
    return halves


@triton.jit
def decode_kernel(
    base, scale, ids, count, first, rows, blocks, cols, out, out_stride,
    ROWS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, BY_ID: tl.constexpr,
    TIMES: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, unit): 256 numbers of ROWS of `count` rows, from `first` on or of numbers ids[i] if BY_ID.

    rows: those of the matrix; TIMES: a row is written, side by side. The next launch starts when what precedes this one
    is done: a step's table, which comes before its embedding, is complete for all that follow.
    """
    wait(OVERLAP)
    release(OVERLAP)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1)
    number = first + place
    if BY_ID:
        number = tl.load(ids + place, mask=place < count, other=0).to(tl.int32)
    row = tl.minimum(number, rows - 1)[None, :, None]
    i = tl.arange(0, 4)[None, None, :]
    j = tl.arange(0, 8)[:, None, None]
    to = out + place.to(tl.int64)[None, :, None] * out_stride
    live = (place < count)[None, :, None]
    if number_bytes(TYPE) > 0:
        pieces = plain(fetch_numbers(base, blocks, row, unit, TYPE), TYPE)
        for v in tl.static_range(8):
            k = unit * 256 + v * 32 + j * 4 + i
            value = pieces[v]
            if SCALED:
                value *= tl.load(scale + row)
            for time in tl.static_range(TIMES):
                tl.store(to + time * cols + k, value.to(out.dtype.element_ty), mask=live & (k < cols))
    else:
        raw = fetch(base, rows, blocks, row, unit, TYPE, EVEN)
        every = unit_numbers(raw, scale, row, out.dtype.element_ty, TYPE, SCALED, FORM)
        for half in tl.static_range(2):
            sixteen = tl.arange(0, 16)[None, None, :]
            k = (unit * 8 + j) * 32 + half * 16 + sixteen
            for time in tl.static_range(TIMES):
                tl.store(to + time * cols + k, every[half], mask=live & (k < cols))


def decode(
    weight: Matrix, out: torch.Tensor, first: int = 0, ids: torch.Tensor | None = None, times: int = 1
) -> torch.Tensor:
    """Rows first, first + 1 … of a matrix, or rows ids, as numbers of out's type into out [count, cols], or `times`
    side by side into out [count, times·cols].

    Beyond the last row it comes again.
    """
    to = target(out.device)
    decode_kernel[(-(-out.shape[0] // 16), -(-weight.blocks // 8))](
        weight.data, weight.scale if weight.scale is not None else weight.data, ids if ids is not None else weight.data,
        out.shape[0], first, weight.rows, weight.blocks, min(weight.cols, out.shape[1] // times), out, out.stride(0),
        ROWS=16, TYPE=weight.type.id, EVEN=weight.blocks % 8 == 0, SCALED=weight.scale is not None,
        BY_ID=ids is not None, TIMES=times, FORM=to.form, OVERLAP=to.overlap, num_warps=4, **to.options,
    )  # fmt: skip
    return out


def spread(weight: Matrix, ids: torch.Tensor, streams: int) -> torch.Tensor:
    """Rows ids [T] of a matrix, decoded, in every stream: float32 [T, S, cols]."""
    out = torch.empty(ids.shape[0], streams, weight.cols, device=weight.data.device)
    decode(weight, out.flatten(1), ids=ids, times=streams)
    return out


def embed(weight: Matrix | HostTable, ids: torch.Tensor) -> torch.Tensor:
    """Rows ids [T] of a matrix, or of a table in host memory, decoded: float32 [T, cols]."""
    if isinstance(weight, HostTable):
        return rows_of(weight, ids)
    return decode(weight, torch.empty(ids.shape[0], weight.cols, device=weight.data.device), ids=ids)
