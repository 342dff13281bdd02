"""Split sets: `<prefix>-%05d-of-%05d.gguf`, numbered from 1 in the name and from 0 in the file's `split.no`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .gguf import GgufFile, read_gguf
from .mapping import refuse

_PART = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)", re.S)
MAX_PARTS = 10_000


def part_names(name: str) -> list[str] | None:
    """All file names of the set that `name` is a part of; None when it is not named like a part."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    count, number = int(match["count"]), int(match["number"])
    if not 1 <= number <= count <= MAX_PARTS:
        return None
    return [f"{match['prefix']}-{i:05d}-of-{count:05d}{match['suffix']}" for i in range(1, count + 1)]


def siblings(path: Path) -> list[Path]:
    """The file itself, or all parts of its set, which must lie beside it."""
    names = part_names(path.name)
    if names is None:
        return [path]
    parts = [path.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        refuse(path, f"is one of {len(parts)} parts, and {len(missing)} are not beside it: {shown}", "download them")
    return parts


def read_set(paths: Sequence[Path]) -> list[GgufFile]:
    """Read the parts of one set, given in order, and check that they belong together."""
    parts = [read_gguf(path) for path in paths]
    for number, part in enumerate(parts):
        for key, expected in (("split.count", len(parts)), ("split.no", number)):
            value = part.metadata.get(key, expected if len(parts) == 1 else None)
            if not _equals(value, expected):
                refuse(part.path, _disagreement(key, value, expected, len(parts)), "give every part under its own name")
    owners: dict[str, Path] = {}
    for part in parts:
        for name in part.tensors:
            if name in owners:
                refuse(part.path, f"tensor {name!r} is in {owners[name].name} too", "the parts are of different sets")
            owners[name] = part.path
    total = parts[0].metadata.get("split.tensors.count")
    if len(parts) > 1 and total is not None and not _equals(total, len(owners)):
        refuse(parts[0].path, f"split.tensors.count is {total!r:.50}, but the parts hold {len(owners)} tensors")
    return parts


def _equals(value: object, expected: int) -> bool:
    """Is the metadata value this number? It may be of any type, an array too."""
    return isinstance(value, int) and value == expected


def _disagreement(key: str, value: object, expected: int, count: int) -> str:
    if key == "split.count" and count == 1:
        return f"is one of {value!r:.50} parts by its split.count, but is not named like `name-00001-of-00002.gguf`"
    if value is None:
        return f"lacks {key}, which part {expected} of a set must have" if key == "split.no" else f"lacks {key}"
    return f"{key} is {value!r:.50}; by its name it must be {expected}"
