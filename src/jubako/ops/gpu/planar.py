"""Planar layouts: the same weights as in a file's blocks, laid out for kernels that read 16 bytes a thread.

A matrix of `rows` rows of `blocks` blocks of 32 is cut into planes, one after the other, each [rows, blocks, bytes]:

    codes of 8 bits   two planes of 16 bytes: weights 0-15 and 16-31 of each block
    codes of 4 bits   16 bytes: byte i holds weights i and i+16, or for look-ups 32-bit word i holds as nibbles weights
                      4i … 4i+3, then 16+4i … 16+4i+3
    codes of 2 bits   8 bytes: byte b of 32-bit word h holds at bits 2i weight 16h + 4i + b, or for look-ups word h
                      holds at bits 2k of its nibbles what word 2h + k of four bits holds in its own
    codes of 1 bit    4 bytes: byte b holds at bit 4h + i weight 16h + 4i + b, or for look-ups bit i of each nibble is
                      of the same nibble of word i of four bits
    sub               sub-scales, a whole number of bytes per block
    d                 scales, [rows, blocks / every, bytes]

Codebook formats (IQ1, IQ2, IQ3) are written out as magnitudes and signs, 2, 3 and 4 bits a weight: a look-up per four
weights costs more time than the bits it saves. Plain numbers stay as they are, rows padded to a multiple of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...quant import BlockType
from . import unpack

PIECE = 1 << 26  # weights repacked at a time; a byte or two each of temporary memory
ALIGNMENT = 256  # bytes; every matrix starts on it


@dataclass(frozen=True)
class Layout:
    """How a block type lies. widths: bits of the code planes, highest plane last; every: blocks per scale d."""

    widths: tuple[int, ...]
    sub: int
    d: int
    every: int
    words: bool = False  # codes in the order for look-ups
    number: int = 0  # bytes of a plain number; nothing else counts then

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights over all planes."""
        blocks = -(-columns // 32)
        if self.number:
            return 32 * blocks * self.number
        return blocks * (4 * sum(self.widths) + self.sub) + -(-blocks // self.every) * self.d

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix, up to where the next may start."""
        return -(-rows * self.row_bytes(columns) // ALIGNMENT) * ALIGNMENT


LAYOUTS: dict[str, Layout] = {
    "F32": Layout((), 0, 0, 1, number=4),
    "F16": Layout((), 0, 0, 1, number=2),
    "BF16": Layout((), 0, 0, 1, number=2),
    "Q8_0": Layout((8,), 0, 2, 1),
    "Q4_0": Layout((4,), 0, 2, 1),
    "Q4_1": Layout((4,), 0, 4, 1),
    "Q5_0": Layout((4, 1), 0, 2, 1),
    "Q5_1": Layout((4, 1), 0, 4, 1),
    "Q2_K": Layout((2,), 2, 4, 8),
    "Q3_K": Layout((2, 1), 2, 2, 8),
    "Q4_K": Layout((4,), 2, 4, 8),
    "Q5_K": Layout((4, 1), 2, 4, 8),
    "Q6_K": Layout((4, 2), 2, 2, 8),
    "IQ2_XXS": Layout((2, 1), 1, 2, 8, words=True),
    "IQ2_XS": Layout((2, 1), 2, 2, 8, words=True),
    "IQ2_S": Layout((2, 1), 2, 2, 8, words=True),
    "IQ3_XXS": Layout((4,), 1, 2, 8, words=True),
    "IQ3_S": Layout((4,), 1, 2, 8, words=True),
    "IQ1_S": Layout((2,), 2, 2, 8),
    "IQ1_M": Layout((2,), 2, 2, 8),
    "IQ4_NL": Layout((4,), 0, 2, 1, words=True),
    "IQ4_XS": Layout((4,), 1, 2, 8, words=True),
    "MXFP4": Layout((4,), 0, 1, 1, words=True),
    "NVFP4": Layout((4,), 2, 0, 1, words=True),
    "Q1_0": Layout((1,), 0, 2, 4),
    "Q2_0": Layout((2,), 0, 2, 2),
    "PQ2_0": Layout((2,), 0, 2, 4),
    "TQ1_0": Layout((2,), 0, 2, 8),
    "TQ2_0": Layout((2,), 0, 2, 8),
}


def repack(kind: BlockType, raw: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Blocks uint8 [..., rows, row bytes] to planes uint8 [..., bytes of a matrix], on the device of `raw`.

    out: where to; matrices may lie apart in it. Temporary memory is a few bytes for each of PIECE weights.
    """
    layout = LAYOUTS[kind.name]
    rows, row_bytes = raw.shape[-2:]
    columns = row_bytes // kind.bytes * kind.weights
    matrices = raw.reshape(-1, rows, row_bytes)
    if out is None:
        out = torch.zeros(*raw.shape[:-2], layout.matrix_bytes(rows, columns), dtype=torch.uint8, device=raw.device)
    flat = out.view(-1, out.shape[-1]) if out.is_contiguous() else out
    assert flat.dim() == 2
    for first, last, top, bottom in _pieces(len(matrices), rows, columns):
        piece = matrices[first:last, top:bottom]
        at = 0
        for plane in planes(kind, piece):
            size = plane.shape[-1]
            target = flat[first:last, at : at + rows * size].unflatten(1, (rows, size))
            target[:, top:bottom] = plane
            at += rows * size
    return out


def planes(kind: BlockType, raw: torch.Tensor) -> Iterator[torch.Tensor]:
    """The planes of rows [M, R, row bytes], uint8 [M, R, bytes] each, in their order."""
    layout = LAYOUTS[kind.name]
    if layout.number:
        yield _padded(raw, layout.number)
        return
    blocks = raw.reshape(-1, kind.bytes)
    codes, sub, d = unpack.UNPACKERS[kind.name](blocks)
    codes = codes.reshape(-1, 32)
    shift = 0
    for width in layout.widths:
        part = codes if width == 8 else (codes >> shift) & ((1 << width) - 1)
        shift += width
        if width == 8:
            yield part[:, :16].reshape(*raw.shape[:2], -1)
            yield part[:, 16:].reshape(*raw.shape[:2], -1)
        else:
            yield _packed(part, width, layout.words).reshape(*raw.shape[:2], -1)
    for scales in (sub, d):
        if scales is not None:
            yield scales.reshape(*raw.shape[:2], -1)


def _pieces(matrices: int, rows: int, columns: int) -> Iterator[tuple[int, int, int, int]]:
    """(first, last, top, bottom): matrices and rows of about PIECE weights."""
    together = max(1, PIECE // (rows * columns))
    height = min(rows, max(1, PIECE // columns))
    for first in range(0, matrices, together):
        for top in range(0, rows, height):
            yield first, min(first + together, matrices), top, min(top + height, rows)


def _packed(codes: torch.Tensor, width: int, words: bool) -> torch.Tensor:
    """Codes [n, 32] of 4, 2 or 1 bits to bytes."""
    if words:
        nibbles = codes.view(-1, 2, 4, 2, 2)  # half, word, byte of the half word, nibble
        pairs = nibbles[..., 0] | nibbles[..., 1] << 4
        each = pairs.transpose(1, 2).reshape(-1, 4, 4)  # word, byte
        if width == 4:
            return each.reshape(-1, 16)
        if width == 2:
            return (each[:, 0::2] | each[:, 1::2] << 2).reshape(-1, 8)
        return each[:, 0] | each[:, 1] << 1 | each[:, 2] << 2 | each[:, 3] << 3
    if width == 4:
        return codes[:, :16] | codes[:, 16:] << 4
    quads = codes.view(-1, 2, 4, 4)  # half, i, byte
    if width == 2:
        return quads[:, :, 0] | quads[:, :, 1] << 2 | quads[:, :, 2] << 4 | quads[:, :, 3] << 6
    eights = codes.view(-1, 8, 4)
    out = eights[:, 0]
    for bit in range(1, 8):
        out = out | eights[:, bit] << bit
    return out


def _padded(raw: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of plain numbers with zeros up to a multiple of 32."""
    return torch.nn.functional.pad(raw, (0, -(raw.shape[-1] // size) % 32 * size))
