"""Q8_0 in tiles: codes lie as the operands of one tensor core instruction, sixteen bytes a thread.

A tile is eight rows, cut into pairs of blocks of 32; rows are padded to two tiles. With row 8·tile + g and block
2·pair + b, both planes one after the other:

    codes   [tiles, pairs, g 8, t 4, b 2, h 2] words of four weights 8t + 4h … 8t + 4h + 3
    scales  [tiles, pairs, g 8, b 2] float16

So a warp that reads a pair of blocks of eight rows reads 512 bytes in a row. Kernels know the layout as a block type.
"""

from __future__ import annotations

import torch

from ...quant import BY_NAME, BlockType
from .planar import ALIGNMENT

TILED = BlockType(id=1 << 20, name="Q8_0 in tiles", weights=32, bytes=34)
ROWS = 16  # of two tiles: what an instruction takes
UNIT, PAIR = 256, 64  # weights of what products take at a time; of the gates', whose rows are short


def fits(kind: BlockType, cols: int, step: int = UNIT) -> bool:
    """Whether a matrix of this type and row length can lie in tiles, for kernels that take `step` weights at a time."""
    return kind is BY_NAME["Q8_0"] and cols % step == 0


def padded(rows: int) -> int:
    """Rows that a matrix takes."""
    return -(-rows // ROWS) * ROWS


def to_tiles(raw: torch.Tensor) -> torch.Tensor:
    """Blocks uint8 [rows, row bytes] of Q8_0 as tiles uint8 [bytes], on their device."""
    rows, pairs = raw.shape[0], raw.shape[1] // 68
    size = padded(rows) * pairs * 2
    out = torch.zeros(-(-size * 34 // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=raw.device)
    codes = out[: size * 32].view(-1, pairs, 8, 4, 2, 2, 4)
    scales = out[size * 32 : size * 34].view(-1, pairs, 8, 2, 2)
    step = max(ROWS, (1 << 25) // raw.shape[1] // ROWS * ROWS)  # some 32 MB at a time
    for first in range(0, rows, step):
        piece = raw[first : first + step]
        if len(piece) % 8:
            piece = torch.cat([piece, piece.new_zeros(8 - len(piece) % 8, raw.shape[1])])
        at = slice(first // 8, first // 8 + len(piece) // 8)
        blocks = piece.reshape(-1, 8, pairs, 2, 34)  # tile, g, pair, b
        scales[at] = blocks[..., :2].permute(0, 2, 1, 3, 4)
        words = blocks[..., 2:].unflatten(-1, (4, 2, 4))  # t, h, bytes
        codes[at] = words.permute(0, 2, 1, 4, 3, 5, 6)
    return out
