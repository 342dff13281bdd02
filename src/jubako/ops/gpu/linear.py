"""Products of weight matrices with up to 16 columns: every weight is read from memory once, in vectors of 16 bytes."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from . import prompt
from .activation import Quantised, quantize
from .cuts import Shape, divisor, second_cut, shape_of
from .integer import fma
from .kinds import number_bytes
from .launch import COLUMNS
from .matrix import Matrix, Projections
from .peer_word import SITES, Outbox, exchange_number, word_of
from .plain import plain_rows
from .products import fetch_units, lane_rows, meet_groups, nothing, tree
from .target import release, target, wait
from .tensor import tile_products, tile_tree
from .tiles import TILED, padded

Input = torch.Tensor | Quantised | prompt.Halves  # [T, K]


@triton.jit
def store_rows(y, number, rows, token, out, out_stride, inject, live, STREAMS: tl.constexpr, FORM: tl.constexpr):
    """y float32 [rows] of one token to out; or, if STREAMS, added to its residual streams by their inject weights."""
    if STREAMS == 0:
        tl.store(out + token.to(tl.int64) * out_stride + number, y, mask=(number < rows) & live)
    else:
        for s in tl.static_range(STREAMS):
            at = out + (token * STREAMS + s).to(tl.int64) * rows + number
            weight = tl.load(inject + token * STREAMS + s, mask=live, other=0.0)
            old = tl.load(at, mask=(number < rows) & live, other=0.0)
            tl.store(at, fma(weight + y * 0.0, y, old, FORM), mask=(number < rows) & live)


@triton.jit
def fetch_groups(
    base, rows, blocks, number, first,
    COUNT: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TYPE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """COUNT units of GROUPS groups of ROWS rows from `number` on."""
    raws = ()
    for g in tl.static_range(GROUPS):
        row = tl.minimum(number + g * ROWS + lane_rows(ROWS), rows - 1)
        raws = raws + (fetch_units(base, rows, blocks, row, first, COUNT, TYPE, EVEN),)
    return raws


@triton.jit
def tile_sums(
    base, rows, blocks, top, x, token, tokens, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Partial sums of GROUPS·ROWS rows from `top` on over UNITS units from `first` on, STEP of them at a time.

    Waits for earlier kernels once its first weights are on their way.
    """
    sums = nothing(COLUMNS * GROUPS, ROWS, TYPE)
    if UNITS == STEP:
        raws = fetch_groups(base, rows, blocks, top, first, STEP, ROWS, GROUPS, TYPE, EVEN)
        wait(OVERLAP)
        sums = meet_groups(sums, raws, x, token, tokens - 1, first, STEP, COLUMNS, GROUPS, TYPE, FINE, EVEN, FORM)
    else:
        for u in range(first, first + UNITS, STEP):
            raws = fetch_groups(base, rows, blocks, top, u, STEP, ROWS, GROUPS, TYPE, EVEN)
            wait(OVERLAP)  # here, as a second copy of the body takes long to compile; later ones pass at once
            sums = meet_groups(sums, raws, x, token, tokens - 1, u, STEP, COLUMNS, GROUPS, TYPE, FINE, EVEN, FORM)
    return sums


@triton.jit
def row_tile(
    base, row_scale, rows, blocks, tile, x, token, tokens, out, out_stride, inject, first,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr, TYPE: tl.constexpr, FINE: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr,
    STREAMS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """GROUPS·ROWS rows of one matrix times COLUMNS columns, as `tile_sums` or `plain_rows` read them, into out."""
    top = tile * ROWS * GROUPS
    if number_bytes(TYPE) > 0:
        sums = plain_rows(
            base, rows, blocks, top, x, token, tokens, first * 256, 2 * UNITS, 2 * STEP, ROWS, COLUMNS, TYPE, EVEN,
            FORM, OVERLAP,
        )  # fmt: skip
    else:
        sums = tile_sums(
            base, rows, blocks, top, x, token, tokens, first, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN,
            FORM, OVERLAP,
        )  # fmt: skip
    for c in tl.static_range(COLUMNS):
        for g in tl.static_range(GROUPS):
            y = sums[c * GROUPS + g]
            if number_bytes(TYPE) == 0:
                y = tree(y, ROWS)
            mine = top + g * ROWS + tl.arange(0, ROWS)
            if SCALED:
                y *= tl.load(row_scale + tl.minimum(mine, rows - 1))
            store_rows(y, mine, rows, token + c, out, out_stride, inject, token + c < tokens, STREAMS, FORM)


@triton.jit
def linear_kernel(
    first_base, first_scale, first_rows, second_base, second_scale, second_rows, second_tiles, blocks,
    q, d, s, numbers, x_blocks, x_valid, tokens, out, out_stride, split_stride, inject,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, SECOND: tl.constexpr, SECOND_STEP: tl.constexpr, SECOND_ROWS: tl.constexpr, FINE: tl.constexpr,
    EVEN: tl.constexpr, SCALED: tl.constexpr, STREAMS: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (group of columns, tile of rows, split): tiles of a second matrix of another type, if any, come first.

    Split i takes UNITS units and writes to out + i·split_stride.
    """
    release(OVERLAP)
    token = tl.program_id(0) * COLUMNS
    tile = tl.program_id(1)
    split = tl.program_id(2)
    out += split.to(tl.int64) * split_stride
    x = (q, d, s, numbers, x_blocks, x_valid)
    if SECOND < 0:
        row_tile(
            first_base, first_scale, first_rows, blocks, tile, x, token, tokens, out, out_stride, inject,
            split * UNITS, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN, SCALED, STREAMS, FORM, OVERLAP,
        )  # fmt: skip
    elif tile >= second_tiles:
        row_tile(
            first_base, first_scale, first_rows, blocks, tile - second_tiles, x, token, tokens, out, out_stride,
            inject, split * UNITS, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN, SCALED, STREAMS, FORM,
            OVERLAP,
        )  # fmt: skip
    else:
        row_tile(
            second_base, second_scale, second_rows, blocks, tile, x, token, tokens, out + first_rows, out_stride,
            inject, split * UNITS, UNITS, SECOND_STEP, SECOND_ROWS, 1, COLUMNS,
            SECOND, FINE, EVEN, SCALED, STREAMS, FORM, OVERLAP,
        )  # fmt: skip


@triton.jit(do_not_specialize=["site"])
def tile_kernel(
    base, scale, rows, second_base, second_scale, second_rows, second_tiles, blocks,
    q, d, s, numbers, x_blocks, x_valid, tokens, out, out_stride, split_stride, box, passes, site, most,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, SECOND: tl.constexpr, SECOND_STEP: tl.constexpr,
    SECOND_ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, SITES: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, split): sixteen rows of a matrix in tiles; SECOND_ROWS of a second one, if any, come first.

    second_tiles: of four columns, FOURS times. Split i takes UNITS units and writes to out + i·split_stride.
    SITES: what is written goes to another card, too (`peer_word.Outbox`).
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    out += split.to(tl.int64) * split_stride
    number = 0
    if SITES > 0:
        number = exchange_number(passes, site, SITES)
    if tile >= second_tiles * FOURS:
        top = (tile - second_tiles * FOURS) * 16
        sums = tile_products(
            base, rows, blocks // 8, top, (q, d, x_blocks), tokens, split * UNITS, UNITS, STEP, FOURS, FORM, OVERLAP
        )
        row = top + tl.arange(0, 2)[None, None, :] * 8 + tl.arange(0, 8)[None, :, None]
        for c in tl.static_range(FOURS):
            y = tile_tree(sums[c])
            if SCALED:
                y *= tl.load(scale + tl.minimum(row, rows - 1))
            column = 4 * c + tl.arange(0, 4)[:, None, None]
            tl.store(out + column.to(tl.int64) * out_stride + row, y, mask=(row < rows) & (column < tokens))
            if SITES > 0:
                place = box + (site % 2) * most + column * rows + row
                tl.store(place, word_of(y, number), mask=(row < rows) & (column < tokens))
    elif SECOND >= 0:
        x = (q, d, s, numbers, x_blocks, x_valid)
        row_tile(
            second_base, second_scale, second_rows, blocks, tile % second_tiles, x, tile // second_tiles * 4, tokens,
            out + rows, out_stride, out, split * UNITS, UNITS, SECOND_STEP, SECOND_ROWS, 1, COLUMNS, SECOND, True, EVEN,
            SCALED, 0, FORM, OVERLAP,
        )  # fmt: skip


def launch(
    matrices: Sequence[Matrix],
    x: Quantised,
    out: torch.Tensor,
    splits: int = 1,
    inject: torch.Tensor | None = None,
    shape: Shape | None = None,
    outbox: Outbox | None = None,
) -> None:
    """One or two matrices times x into the columns of out [T, rows], or of out [splits, T, rows]: sums of parts.

    inject [T, S]: out is streams [T, S, rows] instead, to which the product is added. outbox: of another card, for what
    `in_tiles` makes of one matrix.
    """
    first, second = matrices[0], matrices[1] if len(matrices) > 1 else matrices[0]
    units = -(-first.blocks // 8) // splits
    if in_tiles(first, x) and inject is None:
        launch_tiles(matrices, x, out, splits, units, outbox)
        return
    assert outbox is None
    shape = shape or shape_of(first, units, x.tokens, target(out.device).shares)
    second_rows, second_step = second_cut(second, units, shape.rows, shape.warps, shape.columns)
    second_tiles = -(-second.rows // second_rows) if len(matrices) > 1 else 0
    all_tiles = second_tiles - (-first.rows // (shape.rows * shape.groups))
    to = target(out.device)
    scaled = first.scale is not None or second.scale is not None
    linear_kernel[(-(-x.tokens // shape.columns), all_tiles, splits)](
        first.data, scale_of(first) if scaled else first.data, first.rows,
        second.data, scale_of(second) if scaled else first.data, second.rows, second_tiles, first.blocks,
        x.q, x.d, x.s, x.x, x.blocks, x.valid, x.tokens, out, out.stride(-2), out.stride(0) if splits > 1 else 0,
        out if inject is None else inject,
        UNITS=units, STEP=shape.step, ROWS=shape.rows, GROUPS=shape.groups,
        COLUMNS=shape.columns, TYPE=first.type.id, SECOND=second.type.id if len(matrices) > 1 else -1,
        SECOND_STEP=second_step, SECOND_ROWS=second_rows, FINE=x.fine,
        EVEN=first.blocks % 8 == 0 and x.valid >= first.blocks,
        SCALED=scaled, STREAMS=0 if inject is None else out.shape[1], FORM=to.form_of(shape.columns),
        OVERLAP=to.overlap, num_warps=shape.warps, **to.options,
    )  # fmt: skip


def in_tiles(matrix: Matrix, x: Quantised) -> bool:
    """Whether the product is one of tiles."""
    return matrix.type is TILED and x.fine and x.valid >= matrix.blocks


def launch_tiles(
    matrices: Sequence[Matrix],
    x: Quantised,
    out: torch.Tensor,
    splits: int,
    units: int,
    outbox: Outbox | None = None,
) -> None:
    """`launch` of a matrix in tiles. Few rows: the block pairs of a unit go over four warps, else over two.

    128 registers a thread let a thousand programs of two warps be there at once, with their first weights on their way.
    """
    first, second = matrices[0], matrices[1] if len(matrices) > 1 else matrices[0]
    warps = 2 if first.rows >= 8192 else 4
    columns = min(triton.next_power_of_2(x.tokens), 4)
    second_rows, second_step = second_cut(second, units, 4 * warps, warps, columns)
    second_tiles = -(-second.rows // second_rows) if len(matrices) > 1 else 0
    scaled = first.scale is not None or second.scale is not None
    to = target(out.device)
    fours = triton.next_power_of_2(-(-x.tokens // 4))
    together = {1: 5 if warps == 2 else 12, 2: 5}.get(fours, 2)  # units, as registers allow
    tile_kernel[(second_tiles * fours + padded(first.rows) // 16, splits)](
        first.data, scale_of(first) if scaled else first.data, first.rows,
        second.data, scale_of(second) if scaled else first.data, second.rows, second_tiles, first.blocks,
        x.q, x.d, x.s, x.x, x.blocks, x.valid, x.tokens, out, out.stride(-2), out.stride(0) if splits > 1 else 0,
        *((out, out, 0, 0) if outbox is None else (outbox.box, outbox.passes, outbox.site, outbox.most)),
        UNITS=units, STEP=divisor(units, together), FOURS=fours, SITES=0 if outbox is None else SITES,
        SECOND=second.type.id if len(matrices) > 1 else -1, SECOND_STEP=second_step, SECOND_ROWS=second_rows,
        COLUMNS=columns, EVEN=first.blocks % 8 == 0, SCALED=scaled, FORM=to.form, OVERLAP=to.overlap,
        num_warps=warps, **({"maxnreg": 128} if warps == 2 and fours == 1 and to.overlap else {}), **to.options,
    )  # fmt: skip


def scale_of(matrix: Matrix) -> torch.Tensor:
    """A factor for each row."""
    return matrix.scale if matrix.scale is not None else torch.ones(matrix.rows, device=matrix.data.device)


def linear_many(weights: Projections, x: Input) -> tuple[torch.Tensor, ...]:
    """Products of weights that share their input x [T, K]: column views of one [T, rows] array."""
    if long(x):
        wide = prompt.multiply(weights.matrices, prompt_of(x))
        return tuple(wide[:, first : first + rows] for first, rows in weights.columns)
    read = quantised(x)
    out = torch.empty(read.tokens, weights.rows, device=read.d.device)
    at = 0
    for pair in batched(weights.matrices, 2):
        launch(pair, read, out[:, at:])
        at += sum(m.rows for m in pair)
    return tuple(out[:, first : first + rows] for first, rows in weights.columns)


def linear_many_narrow(weights: Projections, x: prompt.Halves) -> tuple[torch.Tensor, ...]:
    """The same for a prompt, as halves over `prompt.WIDE`."""
    wide = prompt.multiply_narrow(weights.matrices, x)
    return tuple(wide[:, first : first + rows] for first, rows in weights.columns)


def linear(weight: Matrix, x: Input, out: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times weight [N, K] transposed: [T, N], into `out` if given."""
    if long(x):
        y = prompt.multiply((weight,), prompt_of(x))
        return y if out is None else out.copy_(y)
    read = quantised(x)
    if out is None:
        out = torch.empty(read.tokens, weight.rows, device=read.d.device)
    launch((weight,), read, out)
    return out


def linear_combine(weight: Matrix, x: Input, streams: torch.Tensor, inject: torch.Tensor) -> None:
    """Add x [T, K] times weight to streams [T, S, N], in place, weighted by inject [T, S]."""
    if long(x):
        streams.addcmul_(inject[:, :, None], prompt.multiply((weight,), prompt_of(x))[:, None, :])
    else:
        launch((weight,), quantised(x), streams, inject=inject)


def quantised(x: Input) -> Quantised:
    """x as a step's products take it."""
    if isinstance(x, prompt.Halves):  # of a prompt's piece that is as short as a step
        x = x.plain()
    return x if isinstance(x, Quantised) else quantize(x)


def long(x: Input) -> bool:
    """Whether x is read as a prompt."""
    return (x.shape[0] if isinstance(x, torch.Tensor) else x.tokens) > COLUMNS


def prompt_of(x: Input) -> torch.Tensor | prompt.Halves:
    """x as a prompt's products take it."""
    return x.plain() if isinstance(x, Quantised) else x


def batched(matrices: Sequence[Matrix], count: int) -> Iterator[Sequence[Matrix]]:
    """`count` at a time."""
    return (matrices[i : i + count] for i in range(0, len(matrices), count))
