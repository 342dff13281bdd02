"""Vocabularies for the tests of text/: made up, the tiny model's, and the real one where it lies beside the project."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jubako.files.gguf import read_gguf
from jubako.text.vocabulary import byte_alphabet

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<tool_call>", "</tool_call>"]
SPECIALS += ["<tool_response>", "</tool_response>", "<think>", "</think>", "<|vision_start|>", "<|vision_end|>"]

needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="the real vocabulary does not lie beside the project")


def small_metadata() -> dict[str, Any]:
    """The 256 bytes, a few merges, the special tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ã ©", "< |", "i m", "Ġ Ġ", "t h"]
    tokens = [*byte_alphabet(), *("".join(merge.split()) for merge in merges), *SPECIALS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(SPECIALS)) + [3] * 4 + [4] * 6 + [3] * 2,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
    }


@cache
def tiny_metadata() -> dict[str, Any]:
    return dict(read_gguf(ROOT / "tests" / "data" / "tiny" / "tiny-mixed.gguf").metadata)


@cache
def real_metadata(with_tags: bool = False) -> dict[str, Any]:
    """The real vocabulary; with_tags: its padding tokens renamed to the tags of the chat template."""
    metadata = dict(read_gguf(GOLDEN / "tokenizer" / "qwen35-vocab.gguf").metadata)
    if with_tags:
        tokens = list(metadata["tokenizer.ggml.tokens"])
        missing = [token for token in SPECIALS if token not in tokens]
        tokens[151646 : 151646 + len(missing)] = missing
        metadata["tokenizer.ggml.tokens"] = tokens
    return metadata
