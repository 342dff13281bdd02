"""One checkpoint on disk.

    header   fixed size: magic, version, keys, sizes, a checksum for each section and one for the header itself
    tokens   int32 [position], all of them from the start
    fixed    `Saved.fixed`
    pages    those from `first_page` on; those before lie in the parent's file, or in its parent's

Nothing is believed: the header must carry this engine's keys, every size must be the one that follows from `position`,
their sum must be the file's, and every section must have its checksum.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

MAGIC = b"JubakoSn"
VERSION = 1
NO_PARENT = bytes(32)
BATCH = 32  # pages read or written at a time
_HEADER = struct.Struct("<8sI32s32s32s9QIIII")
_CHECKED = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKED.size


class DamagedFile(Exception):
    """Not a session file of this engine, or not a whole one. Says why."""


@dataclass(frozen=True)
class Layout:
    """What a file must agree with to be of use.

    key  of model and KV layout, 32 bytes
    """

    key: bytes
    context: int
    page_tokens: int
    page_bytes: int
    fixed_bytes: int


@dataclass(frozen=True)
class Header:
    """The header's fields in their order. parent: digest of the one with the pages before, NO_PARENT for none."""

    key: bytes
    digest: bytes
    parent: bytes
    position: int
    draft_position: int
    parent_position: int
    page_tokens: int
    first_page: int
    pages: int
    page_bytes: int
    fixed_bytes: int
    written: int  # seconds since 1970
    tokens_sum: int = 0
    fixed_sum: int = 0
    pages_sum: int = 0
    reserved: int = 0

    @property
    def full_pages(self) -> int:
        """Pages that whoever reads on will not write to any more."""
        return min(self.position, self.draft_position) // self.page_tokens

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + 4 * self.position + self.fixed_bytes + self.pages * self.page_bytes

    def check(self, size: int, layout: Layout | None) -> None:
        """Raise DamagedFile unless all numbers fit together, the file's size and the engine's layout."""
        whole = -(-self.position // self.page_tokens) if self.page_tokens else 0
        if not (
            self.page_tokens
            and 0 < self.position < 2**31
            and self.parent_position < self.position
            and (self.parent_position > 0) == (self.parent != NO_PARENT)
            and self.draft_position <= self.position
            and self.first_page * self.page_tokens <= self.parent_position
            and self.first_page + self.pages == whole
        ):
            raise DamagedFile("its numbers contradict each other")
        if self.file_bytes != size:
            raise DamagedFile(f"it has {size} bytes and says {self.file_bytes}")
        if layout is None:
            return
        if self.key != layout.key:
            raise DamagedFile("it belongs to another model")
        mine = (layout.page_tokens, layout.page_bytes, layout.fixed_bytes)
        if (self.page_tokens, self.page_bytes, self.fixed_bytes) != mine or self.position > layout.context:
            raise DamagedFile("it was made with another layout")


def write_file(
    path: Path, header: Header, tokens: np.ndarray, fixed: np.ndarray, batches: Iterable[np.ndarray]
) -> Header:
    """Write beside `path`, for its owner's eyes only, then rename: a whole file or none, whenever the process dies.

    batches: of pages, uint8 [pages, page_bytes]. The header as written, with its checksums.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(bytes(HEADER_BYTES))
            file.write(tokens.data)
            file.write(fixed.data)
            pages_sum = 0
            for batch in batches:
                pages_sum = zlib.crc32(batch.data, pages_sum)
                file.write(batch.data)
            tokens_sum, fixed_sum = zlib.crc32(tokens.data), zlib.crc32(fixed.data)
            header = replace(header, tokens_sum=tokens_sum, fixed_sum=fixed_sum, pages_sum=pages_sum)
            file.seek(0)
            file.write(_packed(header))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        return header
    finally:
        beside.unlink(missing_ok=True)


def read_header(path: Path, layout: Layout | None = None) -> Header:
    """The header, checked. Raises DamagedFile, OSError."""
    with open(path, "rb") as file:
        return _read_header(file, layout)


class SessionFile:
    """An open file whose header is right; sections come checked, in the order of the file."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        try:
            self.header = _read_header(self._file, layout)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SessionFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tokens(self) -> np.ndarray:
        """int32 [position]."""
        return self._section(4 * self.header.position, self.header.tokens_sum, "tokens").view(np.int32)

    def fixed(self) -> np.ndarray:
        """uint8 [fixed_bytes]."""
        return self._section(self.header.fixed_bytes, self.header.fixed_sum, "state")

    def pages(self) -> Iterator[np.ndarray]:
        """Batches of pages, uint8 [pages, page_bytes], each read while the one before is checked and used.

        Only after the last a wrong checksum is told.
        """
        self._file.seek(HEADER_BYTES + 4 * self.header.position + self.header.fixed_bytes)
        left, total = self.header.pages, 0
        with ThreadPoolExecutor(1, "session file") as reader:
            coming = reader.submit(self._batch, min(BATCH, left))
            while left:
                batch = coming.result()
                left -= len(batch)
                coming = reader.submit(self._batch, min(BATCH, left))
                total = zlib.crc32(batch.data, total)
                yield batch
        if total != self.header.pages_sum:
            raise DamagedFile("the checksum of its pages is wrong")

    def _batch(self, count: int) -> np.ndarray:
        """The next pages of the file, which may be none."""
        batch = np.empty((count, self.header.page_bytes), np.uint8)
        if self._file.readinto(batch.data) != batch.nbytes:
            raise DamagedFile("it ends in the middle of its pages")
        return batch

    def _section(self, size: int, checksum: int, name: str) -> np.ndarray:
        buffer = np.empty(size, np.uint8)
        if self._file.readinto(buffer.data) != size or zlib.crc32(buffer.data) != checksum:
            raise DamagedFile(f"the checksum of its {name} is wrong")
        return buffer


def _packed(header: Header) -> bytes:
    packed = _HEADER.pack(MAGIC, VERSION, *(getattr(header, field.name) for field in fields(header)))
    return packed + _CHECKED.pack(zlib.crc32(packed))


def _read_header(file: BinaryIO, layout: Layout | None) -> Header:
    packed = file.read(HEADER_BYTES)
    if len(packed) < HEADER_BYTES or packed[:8] != MAGIC:
        raise DamagedFile("it does not begin like a session file")
    [checksum] = _CHECKED.unpack(packed[_HEADER.size :])
    if zlib.crc32(packed[: _HEADER.size]) != checksum:
        raise DamagedFile("the checksum of its header is wrong")
    _, version, *values = _HEADER.unpack(packed[: _HEADER.size])
    if version != VERSION:
        raise DamagedFile(f"it has version {version}; this engine reads {VERSION}")
    header = Header(*values)
    header.check(os.fstat(file.fileno()).st_size, layout)
    return header
