"""Matrices in tiles: codes lie as the operands of one tensor core instruction, sixteen bytes a thread.

Rows are padded to sixteen, columns cut into pairs of blocks of 32; planes lie one after the other.

Q8_0: a tile is eight rows. With row 8·tile + g and block 2·pair + b

    codes   [tiles, pairs, g 8, t 4, b 2, h 2] words of four weights 8t + 4h … 8t + 4h + 3
    scales  [tiles, pairs, g 8, b 2] float16

Packed codes: a tile is sixteen rows. With row 16·tile + 8·below + g and block 2·pair + b

    nibbles [tiles, pairs, g 8, t 4, below 2, b 2] words: byte i's low nibble is of weight 8t + i, its high one of
            8t + 4 + i; where sixteen weights have a scale of their own (`halved`), of 4t + i and of 16 + 4t + i; codes
            that are looked up lie as weights 8t … 8t + 7 follow
    twos    [tiles, pairs, g 8, t 4, below 2] words: bits 2·(2b + h) of a byte go on above its nibble h (1: high)
    bits    [tiles, pairs, g 8, t 4] words: so does bit 4·below + 2b + h
    sub     [tiles, pairs, g 8, below 2, b 2] sub-scales of two bytes, of K-quants, or of one
    d       [tiles, units of 256, g 8, below 2] scales; of types with blocks of 32, [tiles, pairs, g 8, below 2, b 2]

So a warp that reads a pair of blocks of sixteen rows reads codes of 512 bytes in a row, of Q8_0 twice. Kernels know
each type in tiles as a block type of its own.
"""

from __future__ import annotations

import torch

from ...quant import BY_NAME, BlockType
from . import unpack
from .planar import ALIGNMENT, LAYOUTS

ROWS = 16  # what an instruction takes
UNIT, PAIR = 256, 64  # weights of what products take at a time; of the gates', whose rows are short
_NUMBERS = 1 << 20  # ids from here on


def _in_tiles(name: str) -> BlockType:
    kind = BY_NAME[name]
    row = LAYOUTS[name].row_bytes(kind.weights)
    return BlockType(id=_NUMBERS + kind.id, name=f"{name} in tiles", weights=kind.weights, bytes=row)


TILES = {
    name: _in_tiles(name)
    for name in ("Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS")
}
"""Types in tiles, by the name that a file knows them by."""
TILED = TILES["Q8_0"]
MULTIPLIED = ("Q8_0", "Q4_K", "Q5_K", "Q6_K")  # of them those that products take


def fits(kind: BlockType, cols: int, step: int = UNIT) -> bool:
    """Whether a matrix of this type and row length can lie in tiles, for kernels that take `step` weights at a time:
    products take those of MULTIPLIED, a mix's gates all."""
    return kind.name in (TILES if step == PAIR else MULTIPLIED) and cols % step == 0 and cols % kind.weights == 0


def is_tiled(kind: BlockType) -> bool:
    """Whether this is one of TILES."""
    return kind.id >= _NUMBERS


def halved(name: str) -> bool:
    """Whether both halves of a block of 32 have sub-scales of their own."""
    return name == "Q6_K"


def padded(rows: int) -> int:
    """Rows that a matrix takes."""
    return -(-rows // ROWS) * ROWS


def to_tiles(raw: torch.Tensor, kind: BlockType = BY_NAME["Q8_0"]) -> torch.Tensor:
    """Blocks uint8 [rows, row bytes] of a type as tiles uint8 [bytes], on their device."""
    rows, cols = raw.shape[0], raw.shape[1] // kind.bytes * kind.weights
    size = padded(rows) * TILES[kind.name].row_bytes(cols)
    out = torch.zeros(-(-size // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=raw.device)
    step = max(ROWS, (1 << 25) // raw.shape[1] // ROWS * ROWS)  # some 32 MB at a time
    for first in range(0, rows, step):
        piece = raw[first : first + step]
        if len(piece) % ROWS:
            piece = torch.cat([piece, piece.new_zeros(ROWS - len(piece) % ROWS, raw.shape[1])])
        at = 0
        for plane in _bytes(piece) if kind.name == "Q8_0" else _planes(piece, kind):
            each = plane.numel() // len(piece)  # bytes of a row
            out[at + first * each :][: plane.numel()] = plane.reshape(-1)
            at += padded(rows) * each
    return out


def _bytes(raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The planes of rows of Q8_0."""
    blocks = raw.reshape(len(raw) // 8, 8, -1, 2, 34)  # tile, g, pair, b
    words = blocks[..., 2:].unflatten(-1, (4, 2, 4))  # t, h, bytes
    return words.permute(0, 2, 1, 4, 3, 5, 6), blocks[..., :2].permute(0, 2, 1, 3, 4)


def _planes(raw: torch.Tensor, kind: BlockType) -> list[torch.Tensor]:
    """The planes of rows of packed codes."""
    tiles, layout = len(raw) // ROWS, LAYOUTS[kind.name]
    codes, sub, d = unpack.UNPACKERS[kind.name](raw.reshape(-1, kind.bytes))
    assert d is not None
    shape = (2, 4, 4) if halved(kind.name) else (4, 2, 4)
    words = codes.view(tiles, 2, 8, -1, 2, *shape)  # tile, below, g, pair, b, then t and h in their order, byte
    if halved(kind.name):
        words = words.transpose(5, 6)
    words = words.permute(0, 3, 2, 5, 1, 4, 6, 7)  # tile, pair, g, t, below, b, h, byte
    low, high = words & 15, words >> 4
    planes = [low[..., 0, :] | low[..., 1, :] << 4]
    if layout.words:
        eight = low.flatten(-2).unflatten(-1, (4, 2))
        planes = [eight[..., 0] | eight[..., 1] << 4]
    if 2 in layout.widths:
        planes.append(_above([high[..., i // 2, i % 2, :] << 2 * i for i in range(4)]))
    if 1 in layout.widths:
        planes.append(_above([high[..., i // 4, i // 2 % 2, i % 2, :] << i for i in range(8)]))
    if sub is not None:
        planes.append(sub.reshape(tiles, 2, 8, -1, 2, layout.sub).permute(0, 3, 2, 1, 4, 5))
    if layout.every == 1:
        planes.append(d.reshape(tiles, 2, 8, -1, 2, layout.d).permute(0, 3, 2, 1, 4, 5))
    else:
        planes.append(d.reshape(tiles, 2, 8, -1, layout.d).permute(0, 3, 2, 1, 4))
    return planes


def _above(parts: list[torch.Tensor]) -> torch.Tensor:
    """All of them in one byte each."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole | part
    return whole
