"""What the draft layer is trained on, small enough to travel: beginnings of texts, and whole rows.

    python -m tools.train.prepare_drafts .ship/corpus .ship/vocabulary.json OUT.npz.xz

KIND [n, SNIPPET] ids of passages from random places of random training texts, KIND.test [m, SNIPPET] of texts set aside
for watching the training, rows [k, ROW] marked as in `prepare`: dialogues first, then running text.
"""

from __future__ import annotations

import argparse
import io
import lzma
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from . import prepare
from .prepare import KINDS, ROW
from .vocabulary import texts

SNIPPET = 272
CHARACTERS = 1500
COUNTS = {"prose": 25_000, "code": 20_000, "docs": 8_000}
TESTS, APART = 256, 40  # passages to watch; every so manieth text is only for them
DIALOGUE_ROWS, TEXT_ROWS, FIRST_SEED = 360, 120, 2_000_000


def passages(documents: list[str], count: int, r: Random) -> NDArray[np.uint16]:
    """`count` passages of SNIPPET tokens: a text by chance, a place in it by chance."""
    tokenizer = prepare._state["tokenizer"]
    found: list[list[int]] = []
    while len(found) < count:
        drawn = [r.choice(documents) for _ in range(1000)]
        starts = [r.randrange(max(1, len(text) - CHARACTERS)) for text in drawn]
        pieces = [text[start : start + CHARACTERS] for text, start in zip(drawn, starts, strict=True)]
        encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
        found += [piece.ids[:SNIPPET] for piece in encoded if len(piece.ids) >= SNIPPET]
    return np.array(found[:count], np.uint16)


def build(corpus: Path, vocabulary: Path, out: Path) -> None:
    r, arrays = Random(5), {}
    prepare._setup(corpus, vocabulary)
    running = []
    for kind in KINDS:
        documents = texts(corpus, kind)
        arrays[kind] = passages([text for at, text in enumerate(documents) if at % APART], COUNTS[kind], r)
        arrays[f"{kind}.test"] = passages(documents[::APART], TESTS, r)
        line = prepare._documents(r.sample(documents, 160))
        running.append(line[: TEXT_ROWS // len(KINDS) * ROW].reshape(-1, ROW))
        print(kind, arrays[kind].shape, running[-1].shape, flush=True)
    dialogues = np.stack([prepare._row(seed, None) for seed in range(FIRST_SEED, FIRST_SEED + DIALOGUE_ROWS)])
    buffer = io.BytesIO()
    np.savez(buffer, rows=np.concatenate([dialogues, *running]), allow_pickle=False, **arrays)
    out.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
    print(out, out.stat().st_size, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("out", type=Path)
    build(**vars(parser.parse_args()))
