"""Assembling a model from the files a user gives: trunk, override files, draft layer, n-gram table, or safetensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileFormatError
from .cursor import Value
from .gguf import GgufFile, is_gguf
from .mapping import refuse
from .safetensors import INDEX, read_checkpoint
from .split import read_set, siblings
from .tensors import StoredTensor

NGRAM_TABLE = "per_layer_token_embd.weight"
_LAYER = re.compile(r"blk\.(\d{1,9})\.")
# A draft-layer file's own embedding and head, under the names they have inside a complete file.
_DRAFT_OWN = {"token_embd.weight": "nextn.embed_tokens.weight", "output.weight": "nextn.shared_head_head.weight"}


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """Everything the files say, by name; nothing of it read beyond the headers.

    metadata  of the trunk; keys that only another file has are added, and a draft-layer file extends the layer count
    tensors   those of later files replace those of earlier ones. A draft-layer file's own token_embd and output
              become blk.N.nextn.embed_tokens and blk.N.nextn.shared_head_head
    config    config.json of a safetensors checkpoint, else empty
    paths     every file read, in reading order
    """

    kind: str  # "gguf" or "safetensors"
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]
    config: dict[str, Any]
    paths: list[Path]
    replaced: list[StoredTensor] = field(default_factory=list)

    def trunk_layers(self) -> int | None:
        """Layers before the draft layer, by the metadata; None where it does not say."""
        prefix = str(self.metadata.get("general.architecture", ""))
        total = self.metadata.get(f"{prefix}.block_count")
        drafts = self.metadata.get(f"{prefix}.nextn_predict_layers", 0)
        return total - drafts if isinstance(total, int) and isinstance(drafts, int) else None


@dataclass(frozen=True, eq=False)
class _Set:
    """One split set (or single file) with its parts merged."""

    parts: list[GgufFile]
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]

    @property
    def path(self) -> Path:
        return self.parts[0].path

    def layers(self) -> set[int]:
        return {int(match[1]) for name in self.tensors if (match := _LAYER.match(name))}

    def number(self, key: str, default: int = 0) -> int:
        """A layer count under the architecture's prefix, checked to be a small natural number."""
        value = self.metadata.get(f"{self.architecture()}.{key}", default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
            refuse(self.path, f"{key} is {value!r:.50}", "a small integer was expected")
        return value

    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def is_draft(self) -> bool:
        """Does it hold the draft layer and no other?"""
        drafts, layers = self.number("nextn_predict_layers"), self.layers()
        return bool(drafts and layers) and min(layers) >= self.number("block_count") - drafts


def open_model(paths: Sequence[Path | str] | Path | str) -> ModelFiles:
    """Open a model from any of: one GGUF, one or all parts of a split set, trunk + override files + draft-layer
    file + n-gram side file in any order (overrides after what they override), a directory of one of these, a
    safetensors file, index or directory. Only headers are read. FileFormatError if they can't belong together."""
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    if not given:
        raise FileFormatError("no model file was given")
    for path in given:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # reported below, with what was expected
        except (OSError, ValueError) as error:  # a name too long or with a zero byte, a folder that can't be entered
            refuse(path, f"can't be read: {error!s:.200}")
    given = [file for path in given for file in _expand(path)]
    if any(path.suffix == ".safetensors" or path.name == INDEX or path.is_dir() for path in given):
        if len(given) > 1:
            refuse(given[0], "a safetensors checkpoint is given by its directory or one file, without further files")
        tensors, config, files = read_checkpoint(given[0])
        return ModelFiles("safetensors", {}, tensors, config, files)
    return _assemble(_read_sets(given))


def _expand(path: Path) -> list[Path]:
    """A directory of GGUF files stands for them if they are one set; everything else for itself."""
    if not path.is_dir() or (path / INDEX).exists() or any(path.glob("*.safetensors")):
        return [path]
    files = sorted(path.glob("*.gguf"))
    if not files:
        refuse(path, "holds neither .gguf nor .safetensors files")
    if len({siblings(file)[0] for file in files}) > 1:
        refuse(path, f"holds several models: {', '.join(file.name for file in files[:8])}", "say which")
    return [files[0]]


def _read_sets(paths: list[Path]) -> list[_Set]:
    """One set for every path, without repeats, in the order given."""
    sets: list[_Set] = []
    seen: set[Path] = set()
    for path in paths:
        files = siblings(path)
        if files[0].resolve() in seen:
            continue
        seen.add(files[0].resolve())
        sets.append(_merged(read_set(files)))
        table = _table_file(sets[-1])
        if table is not None and table.resolve() not in {other.resolve() for other in paths}:
            sets.append(_merged(read_set(siblings(table))))
    return sets


def _merged(parts: list[GgufFile]) -> _Set:
    metadata: dict[str, Value] = {}
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        for key, value in part.metadata.items():
            metadata.setdefault(key, value)
        tensors.update(part.tensors)
    return _Set(parts, metadata, tensors)


def _table_file(files: _Set) -> Path | None:
    """The n-gram side file that the metadata names, if the table is not in the set itself."""
    name = files.metadata.get(f"{files.architecture()}.ple.table_file")
    if name is None or NGRAM_TABLE in files.tensors:
        return None
    if not isinstance(name, str) or not name or "\0" in name or Path(name).name != name or "\\" in name or name == "..":
        refuse(files.path, f"ple.table_file is {name!r:.200}", "a file name in the same directory was expected")
    path = files.path.with_name(name)
    if not path.is_file():
        return None  # given on the command line under another name, or reported as missing by the network
    if not is_gguf(path):
        refuse(path, "the n-gram side file is no GGUF", f"make it a GGUF with the one tensor {NGRAM_TABLE}")
    return path


def _assemble(sets: list[_Set]) -> ModelFiles:
    trunk = next((s for s in sets if not s.is_draft() and s.number("block_count")), sets[0])
    metadata: dict[str, Value] = dict(trunk.metadata)
    tensors: dict[str, StoredTensor] = {}
    replaced: list[StoredTensor] = []
    for files in sets:
        own = files.tensors
        if files is not trunk:
            if files.is_draft():
                own = _draft_names(files)
                _extend_layers(metadata, trunk, files)
            for key, value in files.metadata.items():
                if not key.startswith("split."):
                    metadata.setdefault(key, value)
        replaced += [tensors[name] for name in own if name in tensors]
        tensors.update(own)
    return ModelFiles("gguf", metadata, tensors, {}, [part.path for s in sets for part in s.parts], replaced)


def _draft_names(draft: _Set) -> dict[str, StoredTensor]:
    """The draft file's tensors, its own embedding and head named as the draft layer's."""
    layer = min(draft.layers())
    renamed: dict[str, StoredTensor] = {}
    for name, tensor in draft.tensors.items():
        name = f"blk.{layer}.{_DRAFT_OWN[name]}" if name in _DRAFT_OWN else name
        if name in renamed:
            refuse(draft.path, f"holds {name} twice, once under its global name")
        renamed[name] = tensor
    return renamed


def _extend_layers(metadata: dict[str, Value], trunk: _Set, draft: _Set) -> None:
    """Take over the draft file's layer count and the per-layer values of its layer."""
    prefix, architecture = f"{trunk.architecture()}.", draft.architecture()
    layers = draft.number("block_count") - draft.number("nextn_predict_layers")
    mine = trunk.number("block_count") - trunk.number("nextn_predict_layers")
    if architecture != trunk.architecture() or layers != mine:
        refuse(
            draft.path,
            f"holds the draft layer of a {architecture!r:.50} network of {layers} layers",
            f"{trunk.path.name} is {trunk.architecture()!r:.50} with {mine}",
        )
    for key in ("block_count", "nextn_predict_layers", "nextn_shared_target_tensors"):
        if prefix + key in draft.metadata:
            metadata[prefix + key] = draft.metadata[prefix + key]
    for key, value in draft.metadata.items():
        have = metadata.get(key)
        if not isinstance(value, np.ndarray) or not isinstance(have, np.ndarray) or not key.startswith(prefix):
            continue
        if len(have) == layers and len(value) == draft.number("block_count") and have.dtype == value.dtype:
            metadata[key] = np.concatenate([have, value[layers:]])
