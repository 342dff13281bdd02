"""Block formats: how quantised weights lie in bytes, and the floats they stand for."""

from .codec import decode, encode
from .types import BY_ID, BY_NAME, BlockType, block_type

__all__ = ["BY_ID", "BY_NAME", "BlockType", "block_type", "decode", "encode"]
