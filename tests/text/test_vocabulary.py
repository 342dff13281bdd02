"""Files that lie about their vocabulary end in one error that names the key; two kinds of file give the same tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vocabularies import SPECIALS, small_metadata, tiny_metadata

from jubako.errors import FileFormatError
from jubako.text.tokenizer import Tokenizer
from jubako.text.vocabulary import byte_alphabet


def _broken(key: str, value: Any) -> dict[str, Any]:
    return {**small_metadata(), f"tokenizer.ggml.{key}": value}


SMALL = small_metadata()
TOKENS: list[str] = SMALL["tokenizer.ggml.tokens"]
TYPES: list[int] = SMALL["tokenizer.ggml.token_type"]
MERGES: list[str] = SMALL["tokenizer.ggml.merges"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model", "llama", "'llama'"),
        ("model", 7, "7"),
        ("pre", "gpt-4o", "'gpt-4o'"),
        ("pre", ["qwen35"], "qwen35"),
        ("tokens", None, "missing"),
        ("tokens", "abc", "not a list"),
        ("tokens", [*TOKENS[:-1], 3], "not a string"),
        ("tokens", [*TOKENS[:-1], TOKENS[5]], f"entries 5 and {len(TOKENS) - 1}"),
        ("tokens", [*TOKENS[:-1], ""], "empty"),
        ("tokens", ["zz", *TOKENS[1:]], "byte 0x21"),
        ("tokens", [], "has"),
        ("token_type", TYPES[:-1], f"{len(TYPES) - 1} entries"),
        ("token_type", [*TYPES[:-1], 9], f"entry {len(TYPES) - 1} is 9"),
        ("token_type", [1.5] * len(TYPES), "integers"),
        ("token_type", [[1], [1, 2]], "integers"),
        ("token_type", ["1"] * len(TYPES), "integers"),
        ("token_type", [3, *TYPES[1:]], "byte 0x21"),
        ("merges", [*MERGES, "q zz"], f"entry {len(MERGES)}"),
        ("merges", [*MERGES, "q q"], f"entry {len(MERGES)}"),
        ("merges", ["he"], "entry 0"),
        ("merges", ["h e l"], "entry 0"),
        ("merges", ["<|im_end| >"], "entry 0"),
        ("merges", [b"h e"], "not a string"),
        ("merges", 5, "not a list"),
        ("eos_token_id", len(TOKENS), str(len(TOKENS))),
        ("eos_token_id", -1, "-1"),
        ("bos_token_id", "1", "'1'"),
        ("eos_token_id", True, "True"),
    ],
)
def test_hostile_metadata_is_refused_by_key(key: str, value: Any, says: str) -> None:
    metadata = _broken(key, value)
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(FileFormatError) as error:
        Tokenizer.from_metadata(metadata)
    assert says in str(error.value)
    named = "token_type" if (key, value) == ("tokens", []) else "tokens" if says == "byte 0x21" else key
    assert f"tokenizer.ggml.{named}" in str(error.value)


def test_a_merge_cannot_build_a_special_token() -> None:
    metadata = _broken("merges", ["< |", "<| im_end|>"])
    with pytest.raises(FileFormatError, match="entry 1"):
        Tokenizer.from_metadata(metadata)


def test_arrays_serve_as_lists() -> None:
    metadata = _broken("token_type", np.array(TYPES, np.int32))
    assert Tokenizer.from_metadata(metadata).encode("hello") == [TOKENS.index("hello")]


def _checkpoint(directory: Path, metadata: dict[str, Any]) -> Path:
    """Write a Hugging Face tokenizer with the content of GGUF metadata."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], list(metadata["tokenizer.ggml.token_type"])
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    data = {
        "normalizer": {"type": "NFC"},
        "added_tokens": [
            {"id": i, "content": token, "special": bool(kind == 3)}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind != 1
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}, {"type": "ByteLevel"}],
        },
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 1},
            "merges": [merge.split() for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(data))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokens.index("<|endoftext|>")]}))
    return directory


@pytest.mark.parametrize("metadata", [small_metadata(), tiny_metadata()], ids=["small", "tiny"])
def test_checkpoint_and_gguf_give_the_same_ids(tmp_path: Path, metadata: dict[str, Any]) -> None:
    one = Tokenizer.from_metadata(metadata)
    two = Tokenizer.from_huggingface(_checkpoint(tmp_path, metadata))
    assert two.eos_ids == one.eos_ids and two.vocab_size == one.vocab_size and two.special_tokens == one.special_tokens
    for text in ("hello  world\n", "cafe\u0301 naïve", "<|im_start|>user <think>x</think>", "🙂 日本"):
        assert two.encode(text) == one.encode(text)
        assert two.encode(text, special=True) == one.encode(text, special=True)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("tokenizer.json", lambda d: d["model"].update(type="Unigram"), "model.type"),
        ("tokenizer.json", lambda d: d["model"]["vocab"].update(x=10**9), "1000000000"),
        ("tokenizer.json", lambda d: d["added_tokens"][0].update(id=3), "id 3"),
        ("tokenizer.json", lambda d: d["added_tokens"].append("x"), "added_tokens"),
        ("tokenizer.json", lambda d: d["model"].update(merges=[["a"]]), "model.merges"),
        ("tokenizer.json", lambda d: d["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex="(a+)+"), "(a+)+"),
        ("tokenizer_config.json", lambda d: d.update(eos_token="<nope>"), "<nope>"),
        ("generation_config.json", lambda d: d.update(eos_token_id=[5, 10**6]), "eos_token_id"),
    ],
)
def test_hostile_checkpoints_are_refused(tmp_path: Path, file: str, change: Any, says: str) -> None:
    path = _checkpoint(tmp_path, small_metadata()) / file
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError) as error:
        Tokenizer.from_huggingface(tmp_path)
    assert says in str(error.value) and file in str(error.value)


def test_a_checkpoint_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(FileFormatError, match=r"tokenizer\.json"):
        Tokenizer.from_huggingface(tmp_path)


def test_a_full_vocabulary_loads_in_two_seconds() -> None:
    tokens = list(byte_alphabet())
    known = set(tokens)
    merges: list[str] = []
    for left in range(len(tokens) * 1000):
        if len(tokens) == 248_320 - len(SPECIALS):
            break
        for right in tokens[97 : 97 + 90]:
            merged = tokens[left] + right
            if merged not in known:
                known.add(merged)
                tokens.append(merged)
                merges.append(f"{tokens[left]} {right}")
                if len(tokens) == 248_320 - len(SPECIALS):
                    break
    metadata = {
        **small_metadata(),
        "tokenizer.ggml.tokens": tokens + SPECIALS,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(SPECIALS),
        "tokenizer.ggml.merges": merges,
    }
    start = time.process_time()
    tokenizer = Tokenizer.from_metadata(metadata)
    assert time.process_time() - start < 2
    assert tokenizer.vocab_size == 248_320
