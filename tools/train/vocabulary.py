"""The small model's tokenizer: byte-level BPE under the published pre-tokenizer, special tokens where they belong.

python -m tools.train.vocabulary .ship/corpus .ship/vocabulary.json
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from jubako.measure.vocabulary import SpecialTokens, vocabulary
from jubako.text.vocabulary import CONTROL, PATTERNS, USER_DEFINED

from .dialogues import TASKS, render
from .geometry import VOCABULARY

SAMPLE = {"prose": 7_000_000, "code": 5_000_000, "docs": 5_000_000, "dialogues": 1_500_000}  # characters


def texts(corpus: Path, kind: str) -> list[str]:
    """The documents of one kind."""
    return lzma.decompress((corpus / f"{kind}.xz").read_bytes()).decode().split("\0")


def _sample(corpus: Path) -> list[str]:
    r, chosen = Random(3), []
    for kind, wanted in SAMPLE.items():
        if kind == "dialogues":
            pool = [
                "".join(text for text, _ in render(make(r, lambda *_: "").dialogue))
                for make, _ in TASKS.values()
                for _ in range(900)
            ]
        else:
            pool = texts(corpus, kind)
        r.shuffle(pool)
        total = 0
        for text in pool:
            chosen.append(text)
            total += len(text)
            if total > wanted:
                break
    return chosen


def _blank() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(PATTERNS["qwen35"]), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def train(corpus: Path) -> dict[str, Any]:
    """GGUF metadata of the tokenizer: a made-up vocabulary's layout with learned merges."""
    tokenizer = _blank()
    size = SpecialTokens(VOCABULARY).end_of_text
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    cut = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    sample = _sample(corpus)
    for special in cut:
        sample = [text.replace(special, "\n") for text in sample]
    tokenizer.train_from_iterator(sample, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert len(learned) == size
    metadata = vocabulary(VOCABULARY)
    metadata["tokenizer.ggml.tokens"][:size] = learned
    metadata["tokenizer.ggml.merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    metadata["tokenizer.chat_template"] = (Path(__file__).parent / "template.jinja").read_text()
    return metadata


def save(metadata: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in metadata.items()}))


def load(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(path.read_text())
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    metadata["tokenizer.chat_template"] = (Path(__file__).parent / "template.jinja").read_text()
    return metadata


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    """The same vocabulary for the `tokenizers` library; special tokens are matched wherever they stand."""
    tokens = metadata["tokenizer.ggml.tokens"]
    tokenizer = _blank()
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    kinds = metadata["tokenizer.ggml.token_type"]
    plain = {token: id for id, token in enumerate(tokens)}
    tokenizer.model = BPE(vocab=plain, merges=merges)
    special = [
        AddedToken(tokens[id], special=True, normalized=False)
        for id in range(len(tokens))
        if kinds[id] in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


if __name__ == "__main__":
    save(train(Path(sys.argv[1])), Path(sys.argv[2]))
