# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""Lines for the training of the draft layer: where they begin, and the store that holds them with their streams."""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jubako.arch.config import Config

from . import network
from .continuations import Lines
from .model import Model
from .network import Pass
from .prepare import CONTEXT, KINDS
from .prepare_drafts import SNIPPET

SHARES = {"prose": 0.40, "code": 0.32, "docs": 0.16, "dialogue": 0.12}
SHORTEST = 128  # tokens of a beginning
GIVEN = 0.3  # weight of places where the next token was given, not written by the trunk

Beginnings = tuple[Tensor, Tensor]  # ids [B, SNIPPET], how many of them count [B]


class Passages:
    """Beginnings by chance from the file that `prepare_drafts` wrote."""

    def __init__(self, path: Path, seed: int) -> None:
        arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        self.random = np.random.default_rng(seed)
        self.rows: NDArray[np.uint16] = arrays["rows"]
        self.texts: dict[str, NDArray[np.int64]] = {kind: arrays[kind].astype(np.int64) for kind in KINDS}
        answers = _before_answers(self.rows)
        self.random.shuffle(answers)
        self._tests = {kind: arrays[f"{kind}.test"].astype(np.int64) for kind in KINDS}
        self.tests = len(self._tests["prose"])
        self._tests["dialogue"], self.texts["dialogue"] = answers[: self.tests], answers[self.tests :]
        self.kinds = tuple(SHARES)

    def draw(self, count: int) -> Beginnings:
        """Windows of passages; of dialogues, the last tokens before an answer."""
        ids, lengths = np.zeros((count, SNIPPET), np.int64), self.random.integers(SHORTEST, SNIPPET + 1, count)
        kinds = self.random.choice(self.kinds, count, p=list(SHARES.values()))
        for line, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
            passage = self.texts[kind][self.random.integers(len(self.texts[kind]))]
            room = SNIPPET - length
            start = room if kind == "dialogue" else self.random.integers(room + 1)
            ids[line, :length] = passage[start : start + length]
        return torch.from_numpy(ids), torch.from_numpy(lengths)

    def test(self, count: int, each: int) -> Beginnings:
        """`each` passages of every kind that were set aside, kind after kind, then repeated until they are `count`."""
        found = np.concatenate([self._tests[kind][:each] for kind in self.kinds])
        return torch.from_numpy(np.resize(found, (count, SNIPPET))), torch.full((count,), SNIPPET)


def _before_answers(rows: NDArray[np.uint16]) -> NDArray[np.int64]:
    """The SNIPPET tokens before every place in rows where the model begins to write."""
    own = rows < CONTEXT
    begins = [(row, at) for row, at in zip(*np.nonzero(own[:, 1:] & ~own[:, :-1]), strict=True) if at + 1 >= SNIPPET]
    return np.stack([rows[row, at + 1 - SNIPPET : at + 1] & (CONTEXT - 1) for row, at in begins]).astype(np.int64)


class Store:
    """Up to `capacity` lines of `length` tokens on the device; new ones take the places of the oldest."""

    def __init__(self, config: Config, capacity: int, length: int, skip: int, device: str) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(capacity, *shape, dtype=dtype, device=device)

        self.ids, self.best = empty(length + 1, dtype=torch.int16), empty(length, dtype=torch.int16)
        self.streams = empty(length, config.streams, config.hidden, dtype=torch.bfloat16)
        self.prefix = empty(dtype=torch.int64)
        self.length, self.skip, self.capacity = length, skip, capacity
        self.next = self.written = 0

    def __len__(self) -> int:
        return self.written

    def put(self, lines: Lines, which: slice = slice(None)) -> None:
        """Keep some of `lines`, as many as fit before the end."""
        parts = (lines.ids[which], lines.best[which], lines.streams[which], lines.prefix[which])
        count = min(len(parts[0]), self.capacity - self.next)
        place = slice(self.next, self.next + count)
        for target, values in zip((self.ids, self.best, self.streams, self.prefix), parts, strict=True):
            target[place] = values[:count]
        self.next = (self.next + count) % self.capacity
        self.written = max(self.written, place.stop)

    def lines(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """ids [B, T + 1], best [B, T], streams, and the weights of places [B, T - skip]."""
        which = which.to(self.ids.device)
        place = torch.arange(self.skip, self.length, device=self.ids.device)
        trust = torch.where(place + 2 >= self.prefix[which, None], 1.0, GIVEN)
        return self.ids[which].long(), self.best[which].long(), self.streams[which], trust


@torch.no_grad()
def rows_as_lines(store: Store, model: Model, run: Pass, rows: NDArray[np.uint16], seed: int, batch: int = 15) -> None:
    """Fill a store with pieces of training rows as they stand."""
    pieces = np.concatenate(
        [rows[:, start : start + store.length + 1] for start in range(0, rows.shape[1] - store.length, store.length)]
    )
    chosen = np.random.default_rng(seed).permutation(len(pieces))[: store.capacity]
    marked = torch.from_numpy(pieces[chosen].astype(np.int64)).to(store.ids.device)
    output = model.net.weights["output.weight"]
    for ids in (marked & (CONTEXT - 1)).split(batch):
        streams = model.streams(ids[:, :-1], run)[0]
        best = network.logits(streams, model.head, "", output).argmax(-1)
        store.put(Lines(ids, best, streams, ids.new_zeros(len(ids))))
