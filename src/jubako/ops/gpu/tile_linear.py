"""The product of a matrix in tiles with up to sixteen columns, and of rows of numbers beside it, in one launch."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from .activation import Quantised
from .cuts import divisor, second_cut, tile_cut
from .fixed import put
from .kinds import in_tiles as tiled
from .matrix import Matrix
from .peer_word import SITES, Outbox, exchange_number, word_of
from .room import elsewhere, own_room
from .rows import row_tile
from .target import release, target
from .tensor import tile_tree
from .tile_rows import tile_products
from .tile_shares import column_sums, room_words, share_rows, share_sums
from .tiles import ROWS, TILED, is_tiled, padded


@triton.jit
def store_rows(y, row, column, scale, rows, tokens, out, out_stride, sent, SCALED: tl.constexpr, SITES: tl.constexpr):
    """Sums of a matrix's rows times its scale into out, and with SITES to another card: (box, number, site, most)."""
    there = (row < rows) & (column < tokens)
    if SCALED:
        y *= tl.load(scale + tl.minimum(row, rows - 1))
    tl.store(out + column.to(tl.int64) * out_stride + row, y, mask=there)
    if SITES > 0:
        box, number, site, most = sent
        tl.store(box + (site % 2) * most + column * rows + row, word_of(y, number), mask=there)


@triton.jit
def sixteen_rows(
    base, scale, rows, blocks, top, x, tokens, out, out_stride, first, own, sent,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, AT_ONCE: tl.constexpr, SHARES: tl.constexpr,
    AHEAD: tl.constexpr, ALONE: tl.constexpr, TYPE: tl.constexpr, SCALED: tl.constexpr, SITES: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sixteen rows from `top` on of a matrix in tiles times all columns, over UNITS units from `first` on, into out.
    own: see `room.own_room`; sent: see `store_rows`; all else: see `TileCut`."""
    if SHARES > 0:
        program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        room = own_room(own, program, room_words(SHARES, ALONE), FORM)
        if AHEAD > 0:
            sums = share_sums(
                base, rows, blocks // 8, top, x, tokens, first, room, UNITS, STEP, SHARES, AHEAD, ALONE, TYPE, FORM,
                OVERLAP,
            )  # fmt: skip
        elif ALONE:
            sums = column_sums(base, rows, blocks // 8, top, x, first, UNITS, STEP, TYPE, FORM, OVERLAP)
        else:
            every = tile_products(
                base, rows, blocks // 8, top, x, tokens, first, UNITS, STEP, 1, AT_ONCE, TYPE, FORM, OVERLAP
            )
            sums = every[0]
        row, column, y, live = share_rows(sums, room, top, SHARES, ALONE, FORM)
        there = live & (row < rows) & (column < tokens)
        if SCALED:
            y *= tl.load(scale + tl.minimum(row, rows - 1))
        put(out + column.to(tl.int64) * out_stride + row, y, there, FORM)
        if SITES > 0:
            box, number, site, most = sent
            tl.store(box + (site % 2) * most + column * rows + row, word_of(y, number), mask=there)
    else:
        sums = tile_products(
            base, rows, blocks // 8, top, x, tokens, first, UNITS, STEP, FOURS, AT_ONCE, TYPE, FORM, OVERLAP
        )
        row = top + tl.arange(0, 2)[None, None, :] * 8 + tl.arange(0, 8)[None, :, None]
        for c in tl.static_range(FOURS):
            column = 4 * c + tl.arange(0, 4)[:, None, None]
            store_rows(tile_tree(sums[c]), row, column, scale, rows, tokens, out, out_stride, sent, SCALED, SITES)


@triton.jit(do_not_specialize=["site"])
def tile_kernel(
    base, scale, rows, second_base, second_scale, second_rows, second_tiles, blocks: tl.constexpr,
    q, d, s, numbers, x_blocks: tl.constexpr, x_valid, tokens, out, out_stride, split_stride, own,
    box, passes, site, most,
    UNITS: tl.constexpr, STEP: tl.constexpr, FOURS: tl.constexpr, TYPE: tl.constexpr, SECOND: tl.constexpr,
    SECOND_STEP: tl.constexpr, SECOND_ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, SITES: tl.constexpr, AT_ONCE: tl.constexpr, SHARES: tl.constexpr, AHEAD: tl.constexpr,
    ALONE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (tile, split): sixteen rows of a matrix in tiles; programs of a second one, if any, come first.

    second_tiles: of sixteen rows, too, if it lies in tiles; else of SECOND_ROWS rows and four columns, FOURS times.
    Split i takes UNITS units and writes to out + i·split_stride. SITES: what is written goes to another card, too
    (`peer_word.Outbox`).
    """
    release(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    out += split.to(tl.int64) * split_stride
    number = 0
    if SITES > 0:
        number = exchange_number(passes, site, SITES)
    TIMES: tl.constexpr = 1 if SECOND >= 0 and tiled(SECOND) else FOURS
    if tile >= second_tiles * TIMES:
        sixteen_rows(
            base, scale, rows, blocks, (tile - second_tiles * TIMES) * 16, (q, d, s, x_blocks), tokens, out, out_stride,
            split * UNITS, own, (box, number, site, most), UNITS, STEP, FOURS, AT_ONCE, SHARES, AHEAD, ALONE, TYPE,
            SCALED, SITES, FORM, OVERLAP,
        )  # fmt: skip
    elif SECOND >= 0:
        if tiled(SECOND):
            sixteen_rows(
                second_base, second_scale, second_rows, blocks, tile * 16, (q, d, s, x_blocks), tokens, out + rows,
                out_stride, split * UNITS, own, None, UNITS, SECOND_STEP, FOURS, AT_ONCE, SHARES,
                1 if AHEAD > 0 else 0, ALONE, SECOND, SCALED, 0, FORM, OVERLAP,
            )  # fmt: skip
        else:
            x = (q, d, s, numbers, x_blocks, x_valid)
            row_tile(
                second_base, second_scale, second_rows, blocks, tile % second_tiles, x, tile // second_tiles * 4,
                tokens, out + rows, out_stride, split * UNITS, UNITS, SECOND_STEP, SECOND_ROWS, 1, COLUMNS, SECOND,
                True, EVEN, SCALED, FORM, OVERLAP,
            )  # fmt: skip


def in_tiles(matrix: Matrix, x: Quantised) -> bool:
    """Whether the product is one of tiles."""
    return is_tiled(matrix.type) and x.fine and x.valid >= matrix.blocks


def launch_tiles(
    matrices: Sequence[Matrix], x: Quantised, out: torch.Tensor, splits: int, units: int, outbox: Outbox | None = None
) -> None:
    """`launch` of a matrix in tiles."""
    first, second = matrices[0], matrices[1] if len(matrices) > 1 else matrices[0]
    cut = tile_cut(first.rows, units, x.tokens, first.type is not TILED)
    columns = min(triton.next_power_of_2(x.tokens), 4)
    second_rows, second_step = second_cut(second, units, 4 * cut.warps, cut.warps, columns, 2)
    times = cut.fours
    if is_tiled(second.type):
        second_rows, second_step, times = ROWS, cut.step, 1
        if cut.shares:
            second_step = divisor(units // cut.shares, 2)
    second_tiles = -(-second.rows // second_rows) if len(matrices) > 1 else 0
    scaled = first.scale is not None or second.scale is not None
    to = target(out.device)
    programs = second_tiles * times + padded(first.rows) // 16
    words = room_words.fn(cut.shares, cut.alone) if cut.shares else 0
    tile_kernel[(programs, splits)](
        first.data, first.factors if scaled else first.data, first.rows,
        second.data, second.factors if scaled else first.data, second.rows, second_tiles, first.blocks,
        x.q, x.d, x.s, x.x, x.blocks, x.valid, x.tokens, out, out.stride(-2), out.stride(0) if splits > 1 else 0,
        elsewhere(to, programs * splits, words, out.device),
        *((out, out, 0, 0) if outbox is None else (outbox.box, outbox.passes, outbox.site, outbox.most)),
        UNITS=units, STEP=cut.step, FOURS=cut.fours, TYPE=first.type.id, SITES=0 if outbox is None else SITES,
        SECOND=second.type.id if len(matrices) > 1 else -1, SECOND_STEP=second_step, SECOND_ROWS=second_rows,
        COLUMNS=columns, EVEN=first.blocks % 8 == 0, SCALED=scaled, AT_ONCE=cut.at_once, SHARES=cut.shares,
        AHEAD=cut.ahead, ALONE=cut.alone, FORM=to.form, OVERLAP=to.overlap, num_warps=cut.warps,
        **({"maxnreg": cut.registers} if cut.registers and to.overlap else {}), **to.options,
    )  # fmt: skip
