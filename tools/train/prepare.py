"""Token ids for training: the corpus by kind, and packed rows of generated dialogues, on all cores.

    python -m tools.train.prepare .ship/corpus .ship/vocabulary.json OUT --rows 12000

Writes KIND.npy and KIND.held.npy (uint16, documents ended by end-of-text), dialogues.npy [rows, ROW] and one
TASK.held.npy [rows, ROW] for each task. The highest bit marks what the model does not write itself.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dialogues import TASKS, Dialogue, render
from .vocabulary import load, texts, tokenizer_of

ROW = 4097
CONTEXT = 0x8000
KINDS = ("prose", "code", "docs")
HELD_SEED = 1 << 40  # seeds from here on are for measuring

_state: dict[str, Any] = {}


def _setup(corpus: Path, vocabulary: Path) -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"
    metadata = load(vocabulary)
    _state["tokenizer"] = tokenizer_of(metadata)
    _state["eos"] = metadata["tokenizer.ggml.bos_token_id"]
    _state["held"] = [text for kind in KINDS for text in texts(corpus, f"{kind}.held")]
    _state["texts"] = [text for kind in KINDS for text in texts(corpus, kind)[:1500]]


def filler(pool: list[str], r: Random, characters: int) -> str:
    """Running text of about so many characters."""
    parts = []
    while characters > 0:
        text = r.choice(pool)
        start = r.randrange(max(1, len(text) - characters))
        parts.append(text[start : start + characters].strip())
        characters -= len(parts[-1])
    return "\n\n".join(parts)


def encode(dialogue: Dialogue) -> list[int]:
    """Ids of a dialogue and the end of text, marked."""
    ids: list[int] = []
    for text, own in render(dialogue):
        piece = _state["tokenizer"].encode(text, add_special_tokens=False).ids
        ids += piece if own else [id | CONTEXT for id in piece]
    return [*ids, _state["eos"] | CONTEXT]


def _row(seed: int, task: str | None) -> NDArray[np.uint16]:
    r = Random(seed)
    fill = partial(filler, _state["held"] if seed >= HELD_SEED else _state["texts"])
    ids: list[int] = []
    while len(ids) < ROW:
        name = task or r.choices(list(TASKS), [weight for _, weight in TASKS.values()])[0]
        ids += encode(TASKS[name][0](r, fill).dialogue)
    return np.array(ids[:ROW], np.uint16)


def _rows(seeds: range, task: str | None = None) -> NDArray[np.uint16]:
    return np.stack([_row(seed, task) for seed in seeds])


def _documents(documents: list[str]) -> NDArray[np.uint16]:
    ids = [
        [*encoded.ids, _state["eos"]]
        for encoded in _state["tokenizer"].encode_batch(documents, add_special_tokens=False)
    ]
    return np.array([id for piece in ids for id in piece], np.uint16)


def prepare(corpus: Path, vocabulary: Path, out: Path, rows: int, first_seed: int, processes: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with Pool(processes, _setup, (corpus, vocabulary)) as pool:
        step = max(1, min(100, rows // processes))
        packed = pool.map_async(_rows, [range(s, s + step) for s in range(first_seed, first_seed + rows, step)], 1)
        held = {task: pool.map_async(partial(_rows, task=task), [range(HELD_SEED, HELD_SEED + 8)]) for task in TASKS}
        for kind in KINDS:
            for name in (kind, f"{kind}.held"):
                documents = texts(corpus, name)
                parts = pool.map(_documents, [documents[at : at + 40] for at in range(0, len(documents), 40)], 1)
                np.save(out / f"{name}.npy", np.concatenate(parts))
                size = sum(len(text.encode()) for text in documents)
                print(name, sum(map(len, parts)), "tokens", size, "bytes", flush=True)
        for task, result in held.items():
            np.save(out / f"{task}.held.npy", result.get()[0])
        dialogues = np.concatenate(packed.get())
    np.save(out / "dialogues.npy", dialogues)
    print("dialogues", dialogues.shape, "written by the model:", float((dialogues < CONTEXT).mean()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    prepare(**vars(arguments))
