"""Reading safetensors checkpoints: one file, or shards under `model.safetensors.index.json`.

A file is u64 header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data. The header comes from
strangers and is checked like a GGUF's.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

from ..quant import BY_NAME, BlockType
from .mapping import map_file, refuse
from .split import part_names
from .tensors import StoredTensor, mapped_tensor

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 1 << 26
MAX_JSON_BYTES = 1 << 26
MAX_JSON_VALUES = 1 << 20  # commas, colons and brackets: bounds the time and memory of parsing
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 8
_TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, mapped. A shape of () becomes (1,)."""
    mapped, raw = map_file(path)
    if len(mapped) < 8:
        refuse(path, f"is {len(mapped)} bytes long, too short for a safetensors file")
    length = int.from_bytes(mapped[:8], "little")
    if length > min(len(mapped) - 8, MAX_HEADER_BYTES):
        refuse(path, f"header length is {length:,}, but the file has {len(mapped):,} bytes", "download it again")
    header = _parse(path, mapped[8 : 8 + length])
    start, tensors, spans = 8 + length, {}, []
    if len(header) > MAX_TENSORS:
        refuse(path, f"has {len(header):,} tensors; Jubako accepts up to {MAX_TENSORS:,}")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not name.isprintable():
            refuse(path, f"tensor name {name!r:.200} holds control characters")
        kind, shape, begin, end = _entry(path, name, entry, len(mapped) - start)
        tensors[name] = mapped_tensor(raw, path, name, kind, shape, start + begin)
        spans.append((begin, end, name))
    spans.sort()
    for (_, end, name), (begin, _, following) in pairwise(spans):
        if begin < end:
            refuse(path, f"tensors {name!r:.200} and {following!r:.200} overlap")
    return tensors


def _entry(path: Path, name: str, entry: Any, room: int) -> tuple[BlockType, tuple[int, ...], int, int]:
    field = f"tensor {name!r:.200}"
    if not isinstance(entry, dict):
        refuse(path, f"{field} is described by {entry!r:.100}, not by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _TYPES:
        advice = f"Jubako reads {', '.join(_TYPES)}; use the BF16 checkpoint or a GGUF"
        refuse(path, f"{field} has the dtype {dtype!r:.50}", advice)
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS or 0 in shape:
        refuse(path, f"{field} has the shape {shape!r:.100}", f"up to {MAX_DIMENSIONS} positive integers are possible")
    if not _naturals(offsets) or len(offsets) != 2:
        refuse(path, f"{field} has the data_offsets {offsets!r:.100}")
    kind, (begin, end) = BY_NAME[dtype], offsets
    if end > room:
        refuse(path, f"{field} ends {end - room:,} bytes after the end of the file", "the download is incomplete")
    if end - begin != math.prod(shape) * kind.bytes:
        refuse(path, f"{field} of shape {shape!r:.100} in {dtype} does not fill the bytes {begin:,} to {end:,}")
    return kind, tuple(shape) or (1,), begin, end


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object without duplicate keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            refuse(path, f"{twice!r:.200} occurs twice in the JSON")
        return found

    if sum(map(text.count, (b",", b":", b"[", b"{"))) > MAX_JSON_VALUES:
        refuse(path, f"its JSON holds more than {MAX_JSON_VALUES:,} values")
    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        refuse(path, f"its JSON can't be read: {error!s:.200}", "download it again")
    if not isinstance(parsed, dict):
        refuse(path, f"holds {parsed!r:.50} where a JSON object was expected")
    return parsed


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object, at most 64 MiB."""
    mapped, _ = map_file(path)
    if len(mapped) > MAX_JSON_BYTES:
        refuse(path, f"is {len(mapped):,} bytes long; Jubako reads JSON up to {MAX_JSON_BYTES:,}")
    return _parse(path, mapped[:])


def read_checkpoint(path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any], list[Path]]:
    """The tensors, config.json and files of a checkpoint: its directory, its index, or one of its files."""
    directory = path if path.is_dir() else path.parent
    files, weight_map = _shards(path, directory)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_safetensors(file).items():
            if name in tensors:
                refuse(file, f"tensor {name!r:.200} is in {tensors[name].file.name} too")
            tensors[name] = tensor
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name].file.name != file_name:
            refuse(directory / INDEX, f"weight_map places {name!r:.200} in {file_name}, which does not hold it")
    return tensors, read_json(directory / "config.json"), files


def _shards(path: Path, directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The files to read, and which tensor the index says is where."""
    index = directory / INDEX
    if path.suffix == ".safetensors" and part_names(path.name) is None:
        return [path], {}
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            refuse(index, f"weight_map is {weight_map!r:.100}", "it must map tensor names to files")
        for name, file in weight_map.items():
            if not isinstance(file, str) or not _is_plain(file):
                refuse(index, f"weight_map places {name!r:.200} in {file!r:.200}", "it may only name files beside it")
        files = [directory / name for name in sorted(set(weight_map.values()))]
    else:
        weight_map = {}
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            refuse(directory, "holds no .safetensors file")
        files = [directory / name for name in part_names(files[0].name) or [file.name for file in files]]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        what = f"{len(missing)} of {len(files)} files are missing: {', '.join(missing[:5])}"
        refuse(directory, what, "download them")
    return files, weight_map


def _is_plain(name: str) -> bool:
    """A bare file name on any system, no way out of the directory."""
    same = PurePosixPath(name).name == name == PureWindowsPath(name).name
    return same and name.endswith(".safetensors") and "\0" not in name and ":" not in name
