"""Reading one GGUF file: metadata, and tensors as views of the memory map.

Layout: "GGUF", u32 version, u64 tensor count, u64 key count; per key a string, u32 type and value; per tensor a
name, u32 number of dimensions, u64 each (row length first), u32 block type, u64 offset into the data section, which
starts at the next multiple of `general.alignment`. Little endian. Nothing in a header is believed before it is checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileFormatError
from ..quant import BY_ID, BlockType, block_type
from .cursor import MAX_NAME_BYTES, Cursor, Value
from .mapping import map_file, refuse
from .tensors import StoredTensor, mapped_tensor

MAGIC = b"GGUF"
MAX_KEYS = 1 << 15
MAX_TENSORS = 1 << 15
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

_Q2_0 = BY_ID[42]
_PRISM_Q2_0 = BY_ID[142]


@dataclass(frozen=True, eq=False)
class GgufFile:
    """One file: a whole model or one part of a set. `data_start` is where the data section begins."""

    path: Path
    version: int
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]
    alignment: int
    data_start: int
    size: int


@dataclass
class _Info:
    """A tensor's line in the header, not yet believed."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def is_gguf(path: Path) -> bool:
    """Does the file begin as a GGUF does?"""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path | str) -> GgufFile:
    """Read the header of one file and map its tensors. FileFormatError when anything in it can't be true."""
    path = Path(path)
    mapped, raw = map_file(path)
    cursor = Cursor(path, mapped)
    version = _version(cursor)
    tensor_count = cursor.count("tensor count", 24, MAX_TENSORS)
    key_count = cursor.count("metadata key count", 13, MAX_KEYS)
    metadata = _metadata(cursor, key_count)
    infos = _infos(cursor, tensor_count)
    alignment = _alignment(path, metadata)
    start = _up(cursor.at, alignment)
    tensors: dict[str, StoredTensor] = {}
    for info, kind, size in _placed(path, infos, alignment, start, cursor.size):
        tensors[info.name] = mapped_tensor(raw, path, info.name, kind, info.shape, start + info.offset)
        assert tensors[info.name].nbytes == size
    return GgufFile(path, version, metadata, tensors, alignment, min(start, cursor.size), cursor.size)


def _up(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _version(cursor: Cursor) -> int:
    magic = cursor.mapped[:4]
    if magic != MAGIC:
        hint = "a Git LFS pointer, fetch the file itself" if magic == b"vers" else "give a .gguf or .safetensors file"
        raise FileFormatError(f"{cursor.path}: begins with {magic!r}, not with {MAGIC!r}; {hint}")
    cursor.at = 4
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise cursor.fail("version", f"is {version:#x}: a big-endian file", "use the little-endian one")
    raise cursor.fail("version", f"is {version}; Jubako reads 2 and 3", "convert the file anew")


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for i in range(count):
        key = cursor.string(f"metadata key {i}", MAX_NAME_BYTES)
        if not key.isprintable():
            raise cursor.fail(f"metadata key {key[:200]!r}", "holds control characters")
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r}", "occurs twice")
        metadata[key] = cursor.value(f"metadata {key[:200]!r}")
    return metadata


def _infos(cursor: Cursor, count: int) -> list[_Info]:
    infos: list[_Info] = []
    names: set[str] = set()
    for i in range(count):
        name = cursor.string(f"name of tensor {i}", MAX_NAME_BYTES)
        field = f"tensor {name[:200]!r}"
        if not name or name in names:
            raise cursor.fail(field, "occurs twice" if name else "has no name")
        if not name.isprintable():
            raise cursor.fail(field, "holds control characters")
        names.add(name)
        dimensions = cursor.u32(f"{field}: number of dimensions")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise cursor.fail(field, f"has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(cursor.u64(f"{field}: dimension {d}") for d in range(dimensions))[::-1]
        if 0 in shape:
            raise cursor.fail(field, f"has the shape {shape}: a dimension of 0")
        if math.prod(shape) >= 1 << 63:
            raise cursor.fail(field, f"has the shape {shape}: the product of its dimensions overflows")
        infos.append(_Info(name, shape, cursor.u32(f"{field}: block type"), cursor.u64(f"{field}: offset")))
    return infos


def _alignment(path: Path, metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        refuse(path, f"general.alignment is {value!r:.100}", f"it must be a power of two up to {MAX_ALIGNMENT:,}")
    return value


def _placed(
    path: Path, infos: list[_Info], alignment: int, start: int, size: int
) -> list[tuple[_Info, BlockType, int]]:
    """Every tensor with its block type and bytes, all inside the file, aligned, and none over another."""
    if not infos:
        return []
    infos = sorted(infos, key=lambda info: info.offset)
    room = max(0, size - start)
    ends = [info.offset for info in infos[1:]] + [room]
    prism = _is_prism(infos, ends, alignment)
    placed = []
    for info, end in zip(infos, ends, strict=True):
        field = f"tensor {info.name[:200]!r}"
        kind = _PRISM_Q2_0 if prism and info.type_id == _Q2_0.id else _block_type(path, field, info.type_id)
        if info.shape[-1] % kind.weights:
            refuse(path, f"{field}: a row of {info.shape[-1]} is not whole {kind.name} blocks of {kind.weights}")
        bytes_ = math.prod(info.shape) // kind.weights * kind.bytes
        if info.offset % alignment:
            refuse(path, f"{field} has the offset {info.offset:,}, no multiple of the alignment {alignment}")
        if info.offset + bytes_ > room:
            refuse(
                path,
                f"{field} ends at byte {start + info.offset + bytes_:,}, but the file has {size:,}",
                "the download is incomplete or the header is damaged",
            )
        if bytes_ > end - info.offset:
            refuse(path, f"{field} ({kind.name}, {bytes_:,} bytes) overlaps the tensor at offset {end:,}")
        placed.append((info, kind, bytes_))
    return placed


def _block_type(path: Path, field: str, type_id: int) -> BlockType:
    if type_id not in BY_ID:
        try:
            block_type(type_id)
        except FileFormatError as error:
            refuse(path, f"{field}: {error}")
    return BY_ID[type_id]


def _is_prism(infos: list[_Info], ends: list[int], alignment: int) -> bool:
    """Do the tensors of id 42 hold PrismML's blocks (128 weights in 34 bytes) rather than ggml's (64 in 18)?

    Both write id 42, so the room up to the next tensor decides: all must fit PrismML's size exactly, and one
    must be too short for ggml's.
    """
    too_short = False
    for info, end in zip(infos, ends, strict=True):
        if info.type_id != _Q2_0.id:
            continue
        weights, room = math.prod(info.shape), end - info.offset
        size = weights // _PRISM_Q2_0.weights * _PRISM_Q2_0.bytes
        if info.shape[-1] % _PRISM_Q2_0.weights or room not in (size, _up(size, alignment)):
            return False
        too_short |= room < weights // _Q2_0.weights * _Q2_0.bytes
    return too_short
