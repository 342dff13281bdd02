"""Bits per byte of a 5-gram model over the same tokens, trained on the same text (interpolated, Witten-Bell).

python -m tools.train.baseline .ship/corpus .ship/vocabulary.json --tokens 24576
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .geometry import VOCABULARY
from .prepare import KINDS
from .vocabulary import load, texts, tokenizer_of

ORDER, WINDOW = 5, 2048
Hashes = NDArray[np.uint64]


def contexts(ids: NDArray[np.int64], length: int) -> Hashes:
    """A hash of the `length` tokens before each position from ORDER - 1 on."""
    result = np.full(len(ids) - ORDER + 1, 1469598103934665603 + length, np.uint64)
    for back in range(1, length + 1):
        token = ids[ORDER - 1 - back : len(ids) - back].astype(np.uint64)
        result = (result ^ (token + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(29)
    return result


def joined(context: Hashes, tokens: NDArray[np.int64]) -> Hashes:
    mixed = (context ^ (tokens.astype(np.uint64) + np.uint64(77))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))


def count(keys: Hashes, wanted: Hashes) -> NDArray[np.float64]:
    """How often each wanted key is among the keys."""
    known, counts = np.unique(keys, return_counts=True)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, counts[at], 0).astype(np.float64)


def probabilities(train: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of every token of `test` from position ORDER - 1 on."""
    result = np.full(len(test) - ORDER + 1, 1 / VOCABULARY)
    for length in range(ORDER):
        before, asked = contexts(train, length), contexts(test, length)
        pairs, wanted = joined(before, train[ORDER - 1 :]), joined(asked, test[ORDER - 1 :])
        both, alone = count(pairs, wanted), count(before, asked)
        _, first = np.unique(pairs, return_index=True)
        kinds = count(before[first], asked)
        result = np.where(alone > 0, (both + kinds * result) / np.maximum(alone + kinds, 1), result)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--tokens", type=int, default=24_576)
    options = parser.parse_args()
    tokenizer = tokenizer_of(load(options.vocabulary))
    for kind in KINDS:
        train = np.array([id for text in texts(options.corpus, kind) for id in tokenizer.encode(text).ids], np.int64)
        held: list[int] = []
        for text in texts(options.corpus, f"{kind}.held"):
            held += tokenizer.encode(text).ids
            if len(held) >= options.tokens:
                break
        held = held[: options.tokens]
        # windows as the model reads them: the first token of each is not scored, contexts may look into the one before
        scored = -np.log(probabilities(train, np.array([0] * (ORDER - 2) + held, np.int64)))
        nats, size = 0.0, 0
        for start in range(0, len(held) - WINDOW + 1, WINDOW):
            nats += float(scored[start : start + WINDOW - 1].sum())
            size += len(tokenizer.decode(held[start + 1 : start + WINDOW], skip_special_tokens=False).encode())
        print(f"{kind}: {nats / size / math.log(2):.4f} bits per byte ({len(train)} tokens of training)", flush=True)


if __name__ == "__main__":
    main()
