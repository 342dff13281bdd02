"""The block types: how many weights lie in how many bytes. Ids and names are ggml's."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FileFormatError


@dataclass(frozen=True)
class BlockType:
    """One way of storing weights: `weights` consecutive values of a row take `bytes` bytes."""

    id: int
    name: str
    weights: int
    bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes / self.weights

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights. The row must be a whole number of blocks."""
        if columns % self.weights:
            raise FileFormatError(f"a row of {columns} is not made of whole {self.name} blocks of {self.weights}")
        return columns // self.weights * self.bytes


_TYPES = (
    BlockType(0, "F32", 1, 4),
    BlockType(1, "F16", 1, 2),
    BlockType(2, "Q4_0", 32, 18),
    BlockType(3, "Q4_1", 32, 20),
    BlockType(6, "Q5_0", 32, 22),
    BlockType(7, "Q5_1", 32, 24),
    BlockType(8, "Q8_0", 32, 34),
    BlockType(10, "Q2_K", 256, 84),
    BlockType(11, "Q3_K", 256, 110),
    BlockType(12, "Q4_K", 256, 144),
    BlockType(13, "Q5_K", 256, 176),
    BlockType(14, "Q6_K", 256, 210),
    BlockType(16, "IQ2_XXS", 256, 66),
    BlockType(17, "IQ2_XS", 256, 74),
    BlockType(18, "IQ3_XXS", 256, 98),
    BlockType(19, "IQ1_S", 256, 50),
    BlockType(20, "IQ4_NL", 32, 18),
    BlockType(21, "IQ3_S", 256, 110),
    BlockType(22, "IQ2_S", 256, 82),
    BlockType(23, "IQ4_XS", 256, 136),
    BlockType(24, "I8", 1, 1),
    BlockType(25, "I16", 1, 2),
    BlockType(26, "I32", 1, 4),
    BlockType(27, "I64", 1, 8),
    BlockType(28, "F64", 1, 8),
    BlockType(29, "IQ1_M", 256, 56),
    BlockType(30, "BF16", 1, 2),
    BlockType(34, "TQ1_0", 256, 54),
    BlockType(35, "TQ2_0", 256, 66),
    BlockType(39, "MXFP4", 32, 17),
    BlockType(40, "NVFP4", 64, 36),
    BlockType(41, "Q1_0", 128, 18),
    BlockType(42, "Q2_0", 64, 18),
    # PrismML's form of Q2_0: its older files carry id 42 as well, and files/gguf.py tells them apart by size.
    BlockType(142, "PQ2_0", 128, 34),
)

BY_ID: dict[int, BlockType] = {t.id: t for t in _TYPES}
BY_NAME: dict[str, BlockType] = {t.name: t for t in _TYPES}


def block_type(which: BlockType | int | str) -> BlockType:
    """The block type by name ("IQ4_NL", any case) or ggml id; FileFormatError when Jubako does not know it."""
    if isinstance(which, BlockType):
        return which
    found = BY_NAME.get(which.upper()) if isinstance(which, str) else BY_ID.get(int(which))
    if found is None:
        known = ", ".join(f"{t.name} ({t.id})" for t in _TYPES)
        raise FileFormatError(f"block type {which!r} is not known to Jubako; it reads {known}")
    return found
