"""GGUF bytes built by hand, so that tests can make every field lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, BOOL, STRING, ARRAY, U32, U64 = 0, 7, 8, 9, 4, 10


def string(text: bytes | str, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: bytes | str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def array(name: str, kind: int, count: int, elements: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + elements)


def tensor(
    name: bytes | str, dimensions: Sequence[int], kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    """A tensor's line; dimensions in file order, row length first."""
    rank = len(dimensions) if rank is None else rank
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", rank, *dimensions, kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    magic: bytes = b"GGUF",
    alignment: int = 32,
) -> bytes:
    counts = (len(tensors) if tensor_count is None else tensor_count, len(keys) if key_count is None else key_count)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + (bytes(-len(head) % alignment) + data if tensors else b"")
