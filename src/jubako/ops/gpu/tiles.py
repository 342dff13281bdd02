"""Q8_0 in tiles: codes lie as the operands of one tensor core instruction, sixteen bytes a thread.

A tile is eight rows, a unit eight blocks of 32 of each; rows are padded to two tiles. With row 8·tile + g and block
8·unit + 2·p + b, both planes one after the other:

    codes   [tiles, units, p 4, g 8, t 4, b 2, h 2] words of four weights 16h + 4t … 16h + 4t + 3
    scales  [tiles, units, p 4, g 8, b 2] float16

So a warp that reads a pair of blocks of eight rows reads 512 bytes in a row. Kernels know the layout as a block type.
"""

from __future__ import annotations

import torch

from ...quant import BY_NAME, BlockType
from .planar import ALIGNMENT

TILED = BlockType(id=1 << 20, name="Q8_0 in tiles", weights=32, bytes=34)
ROWS = 16  # of two tiles: what an instruction takes
UNIT = 256  # weights


def fits(kind: BlockType, cols: int) -> bool:
    """Whether a matrix of this type and row length can lie in tiles."""
    return kind is BY_NAME["Q8_0"] and cols % UNIT == 0


def padded(rows: int) -> int:
    """Rows that a matrix takes."""
    return -(-rows // ROWS) * ROWS


def to_tiles(raw: torch.Tensor) -> torch.Tensor:
    """Blocks uint8 [rows, row bytes] of Q8_0 as tiles uint8 [bytes], on their device."""
    rows, units = raw.shape[0], raw.shape[1] // 34 // 8
    size = padded(rows) * units * 8
    out = torch.zeros(-(-size * 34 // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=raw.device)
    codes = out[: size * 32].view(-1, units, 4, 8, 4, 2, 2, 4)
    scales = out[size * 32 : size * 34].view(-1, units, 4, 8, 2, 2)
    step = max(ROWS, (1 << 25) // raw.shape[1] // ROWS * ROWS)  # some 32 MB at a time
    for first in range(0, rows, step):
        piece = raw[first : first + step]
        if len(piece) % 8:
            piece = torch.cat([piece, piece.new_zeros(8 - len(piece) % 8, raw.shape[1])])
        at = slice(first // 8, first // 8 + len(piece) // 8)
        blocks = piece.reshape(-1, 8, units, 4, 2, 34)  # tile, g, unit, p, b
        scales[at] = blocks[..., :2].permute(0, 2, 3, 1, 4, 5)
        words = blocks[..., 2:].unflatten(-1, (2, 4, 4))  # h, t, bytes
        codes[at] = words.permute(0, 2, 3, 1, 6, 4, 5, 7)
    return out
