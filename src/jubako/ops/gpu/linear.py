"""Products of weight matrices with up to 16 columns: every weight is read from memory once, in vectors of 16 bytes."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from . import prompt
from .activation import Quantised, quantize
from .cuts import Shape, second_cut, shape_of
from .launch import COLUMNS
from .matrix import Matrix, Projections
from .peer_word import Outbox
from .rows import row_tile
from .target import release, target
from .tile_linear import in_tiles, launch_tiles

Input = torch.Tensor | Quantised | prompt.Halves  # [T, K]


@triton.jit
def linear_kernel(
    first_base, first_scale, first_rows, second_base, second_scale, second_rows, second_tiles, blocks,
    q, d, s, numbers, x_blocks, x_valid, tokens, out, out_stride, split_stride,
    UNITS: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, SECOND: tl.constexpr, SECOND_STEP: tl.constexpr, SECOND_ROWS: tl.constexpr, FINE: tl.constexpr,
    EVEN: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
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
            first_base, first_scale, first_rows, blocks, tile, x, token, tokens, out, out_stride,
            split * UNITS, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN, SCALED, FORM, OVERLAP,
        )  # fmt: skip
    elif tile >= second_tiles:
        row_tile(
            first_base, first_scale, first_rows, blocks, tile - second_tiles, x, token, tokens, out, out_stride,
            split * UNITS, UNITS, STEP, ROWS, GROUPS, COLUMNS, TYPE, FINE, EVEN, SCALED, FORM, OVERLAP,
        )  # fmt: skip
    else:
        row_tile(
            second_base, second_scale, second_rows, blocks, tile, x, token, tokens, out + first_rows, out_stride,
            split * UNITS, UNITS, SECOND_STEP, SECOND_ROWS, 1, COLUMNS, SECOND, FINE, EVEN, SCALED, FORM, OVERLAP,
        )  # fmt: skip


def launch(
    matrices: Sequence[Matrix],
    x: Quantised,
    out: torch.Tensor,
    splits: int = 1,
    shape: Shape | None = None,
    outbox: Outbox | None = None,
) -> None:
    """One or two matrices times x into the columns of out [T, rows], or of out [splits, T, rows]: sums of parts.

    outbox: of another card, for what `in_tiles` makes of one matrix.
    """
    first, second = matrices[0], matrices[1] if len(matrices) > 1 else matrices[0]
    units = -(-first.blocks // 8) // splits
    if in_tiles(first, x):
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
        first.data, first.factors if scaled else first.data, first.rows,
        second.data, second.factors if scaled else first.data, second.rows, second_tiles, first.blocks,
        x.q, x.d, x.s, x.x, x.blocks, x.valid, x.tokens, out, out.stride(-2), out.stride(0) if splits > 1 else 0,
        UNITS=units, STEP=shape.step, ROWS=shape.rows, GROUPS=shape.groups,
        COLUMNS=shape.columns, TYPE=first.type.id, SECOND=second.type.id if len(matrices) > 1 else -1,
        SECOND_STEP=second_step, SECOND_ROWS=second_rows, FINE=x.fine,
        EVEN=first.blocks % 8 == 0 and x.valid >= first.blocks,
        SCALED=scaled, FORM=to.form_of(shape.columns),
        OVERLAP=to.overlap, num_warps=shape.warps, **to.options,
    )  # fmt: skip


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
