"""What a file says about its tokens, checked: spellings, kinds, merges, end tokens.

A `Vocabulary` is read from GGUF metadata (`tokenizer.ggml.*`) or from a Hugging Face `tokenizer.json`; both give the
same thing. Only byte-level BPE of the Qwen family is read. Nothing is normalised: `tokenizer.json` may ask for NFC,
GGUF files can't, and the same text must give the same ids from either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from ..errors import FileFormatError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# llama.cpp's names of pre-tokenizers, and the pattern each cuts text with before merging.
PATTERNS = {
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes as printable characters: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True)
class Vocabulary:
    """tokens[id] is a spelling, in the byte alphabet for normal tokens and as it stands for the others."""

    tokens: list[str]
    kinds: np.ndarray  # int64 [vocab_size], the constants above
    merges: list[tuple[str, str]]
    pattern: str
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]  # what else the file names as end of sequence or of turn

    @staticmethod
    def from_metadata(metadata: Mapping[str, object]) -> Vocabulary:
        """Read the keys `tokenizer.ggml.*` of a GGUF file; raises FileFormatError naming the key."""
        model = metadata.get("tokenizer.ggml.model")
        if model != "gpt2":
            raise FileFormatError(f"tokenizer.ggml.model is {model!r}; Jubako reads 'gpt2' (byte-level BPE)")
        pre = metadata.get("tokenizer.ggml.pre")
        if not isinstance(pre, str) or pre not in PATTERNS:
            raise FileFormatError(f"tokenizer.ggml.pre is {pre!r}; Jubako knows {', '.join(PATTERNS)}")
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        kinds = _kinds(metadata, "tokenizer.ggml.token_type", len(tokens))
        merges = _pairs(_strings(metadata, "tokenizer.ggml.merges"), "tokenizer.ggml.merges")
        ids = {
            key: _token_id(metadata[key], key, len(tokens))
            for key in (f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom"))
            if key in metadata
        }
        bos, eos = (ids.pop(f"tokenizer.ggml.{name}_token_id", None) for name in ("bos", "eos"))
        vocabulary = Vocabulary(tokens, kinds, merges, PATTERNS[pre], bos, eos, frozenset(ids.values()))
        _check(vocabulary, "tokenizer.ggml.tokens", "tokenizer.ggml.merges")
        return vocabulary

    @staticmethod
    def from_huggingface(directory: Path) -> Vocabulary:
        """Read `tokenizer.json` and, where they exist, `tokenizer_config.json` and `generation_config.json`."""
        path = directory / "tokenizer.json"
        data = _json(path)
        model = data.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            raise FileFormatError(f"{path}: model.type is not BPE")
        pattern = _split_pattern(data.get("pre_tokenizer"))
        if pattern is None or pattern not in PATTERNS.values():
            raise FileFormatError(f"{path}: pre_tokenizer splits by {pattern!r}, which Jubako does not know")
        tokens, kinds = _huggingface_tokens(model.get("vocab"), data.get("added_tokens", []), path)
        merges = model.get("merges")
        if not isinstance(merges, list):
            raise FileFormatError(f"{path}: model.merges is not a list")
        pairs = _pairs(merges, f"{path}: model.merges")
        bos, eos = (_huggingface_token(directory, name, tokens) for name in ("bos_token", "eos_token"))
        vocabulary = Vocabulary(tokens, kinds, pairs, pattern, bos, eos, _huggingface_ends(directory, len(tokens)))
        _check(vocabulary, f"{path}: model.vocab", f"{path}: model.merges")
        return vocabulary


def _check(vocabulary: Vocabulary, tokens_key: str, merges_key: str) -> None:
    """Everything the BPE model takes for granted: one id per spelling, all bytes, merges of normal tokens only."""
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    if not tokens:
        raise FileFormatError(f"{tokens_key} is empty")
    if len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if seen.setdefault(token, i) != i:
                raise FileFormatError(f"{tokens_key}: entries {seen[token]} and {i} are both {token!r}")
    if "" in tokens:
        raise FileFormatError(f"{tokens_key}: entry {tokens.index('')} is empty")
    normal = {token for token, kind in zip(tokens, kinds.tolist(), strict=True) if kind == NORMAL}
    for character, byte in byte_alphabet().items():
        if character not in normal:
            raise FileFormatError(f"{tokens_key}: no normal token for byte 0x{byte:02x}, spelled {character!r}")
    for i, (left, right) in enumerate(vocabulary.merges):
        if left not in normal or right not in normal or left + right not in normal:
            raise FileFormatError(f"{merges_key}: entry {i}, {left!r} + {right!r}, names what is not a normal token")


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise FileFormatError(f"{key} is missing")
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise FileFormatError(f"{key} is a {type(value).__name__}, not a list of strings")
    strings = list(value)
    if set(map(type, strings)) - {str}:
        raise FileFormatError(f"{key} holds something that is not a string")
    return strings


def _kinds(metadata: Mapping[str, object], key: str, count: int) -> np.ndarray:
    value = metadata.get(key)
    if value is None:
        raise FileFormatError(f"{key} is missing")
    try:
        kinds = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{key} is not a list of integers: {error}") from error
    if kinds.ndim != 1 or kinds.dtype.kind not in "iu":
        raise FileFormatError(f"{key} is not a list of integers")
    if len(kinds) != count:
        raise FileFormatError(f"{key} has {len(kinds)} entries, tokenizer.ggml.tokens has {count}")
    wrong = (kinds < NORMAL) | (kinds > BYTE)
    if wrong.any():
        i = int(wrong.argmax())
        raise FileFormatError(f"{key}: entry {i} is {kinds[i]}; kinds are {NORMAL} to {BYTE}")
    return kinds.astype(np.int64)


def _pairs(merges: Sequence[object], key: str) -> list[tuple[str, str]]:
    """Merges as written "left right" or as two strings."""
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) if isinstance(m, list) else () for m in merges]
    for i, pair in enumerate(pairs):
        if len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            raise FileFormatError(f"{key}: entry {i} is {merges[i]!r}, not two tokens")
    return cast(list[tuple[str, str]], pairs)


def _token_id(value: object, key: str, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < count:
        raise FileFormatError(f"{key} is {value!r}; ids are 0 to {count - 1}")
    return int(value)


def _json(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} can't be read: {error}") from error
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} is not a JSON object")
    return data


def _split_pattern(pre_tokenizer: object) -> str | None:
    """The regular expression of the first Split step."""
    if not isinstance(pre_tokenizer, dict):
        return None
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "Split" and isinstance(step.get("pattern"), dict):
            pattern = step["pattern"].get("Regex")
            return pattern if isinstance(pattern, str) else None
    return None


def _huggingface_tokens(vocab: object, added: object, path: Path) -> tuple[list[str], np.ndarray]:
    """Spellings by id; ids that nobody names become unused tokens."""
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise FileFormatError(f"{path}: model.vocab or added_tokens is missing")
    entries = [(token, id_, NORMAL) for token, id_ in vocab.items()]
    for entry in added:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise FileFormatError(f"{path}: added_tokens holds {entry!r}")
        entries.append((entry["content"], entry.get("id"), CONTROL if entry.get("special") else USER_DEFINED))
    limit = 2 * len(entries) + 1024  # room for padding, but not for a lying id
    by_id: dict[int, tuple[str, int]] = {}
    for token, id_, kind in entries:
        number = _token_id(id_, f"{path}: the id of {token!r}", limit)
        if number in by_id and by_id[number][0] != token:
            raise FileFormatError(f"{path}: id {number} is both {by_id[number][0]!r} and {token!r}")
        by_id[number] = (token, kind)
    count = max(by_id, default=-1) + 1
    table = [by_id.get(i, (f"[UNUSED{i}]", UNUSED)) for i in range(count)]
    return [token for token, _ in table], np.array([kind for _, kind in table], np.int64)


def _huggingface_token(directory: Path, name: str, tokens: list[str]) -> int | None:
    """The id of the token that the tokenizer config calls `name`."""
    path = directory / "tokenizer_config.json"
    token = _json(path).get(name) if path.exists() else None
    token = token.get("content") if isinstance(token, dict) else token
    if token is None:
        return None
    if token not in tokens:
        raise FileFormatError(f"{path}: {name} {token!r} is not in the vocabulary")
    return tokens.index(token)


def _huggingface_ends(directory: Path, count: int) -> frozenset[int]:
    """The ids that the generation config stops at."""
    path = directory / "generation_config.json"
    value = _json(path).get("eos_token_id") if path.exists() else None
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return frozenset(_token_id(item, f"{path}: eos_token_id", count) for item in ids)
