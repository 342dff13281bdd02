"""The draft layer on the GPU: catch up on what is sure, then guess token after token; two captured graphs.

    carried streams ┐                        ┌ follow: id of the draft, next position
    sure ids ───────┴ join → layer → last ───┴→ join → layer → …        each pass: logits, the likeliest, the next table

Drafts never change the text, so nothing here need give the same bits for every width. `engine.draft_layer` is the same
on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...ops.gpu.carry import follow, kept_streams, last_rows
from ...ops.gpu.columns import Columns, Part, step_table
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import GpuOps
from ...ops.gpu.state import GpuState
from ..executor import DraftWish
from .forward import run_layer
from .graph import Graphs, StepTable

MOST = 64  # drafts of a turn, at most


@dataclass(frozen=True)
class Guess:
    """What a pass leaves: streams [parts, S, H] after each part's last token, and logits [parts, vocabulary]."""

    streams: torch.Tensor
    logits: torch.Tensor


class Drafts:
    """Proposes for up to 16 columns of sequences at once. Owns the table and the graphs of its passes."""

    def __init__(self, ops: GpuOps) -> None:
        self.ops = ops
        self.table = StepTable(ops.device)
        self.drafts = torch.zeros(MOST, COLUMNS, dtype=torch.int32, device=ops.device)
        self.turn = torch.zeros(1, dtype=torch.int32, device=ops.device)
        config = ops.config
        self.streams = torch.zeros(COLUMNS, config.streams, config.hidden, device=ops.device)
        self._graphs: Graphs[tuple[int, int], Guess] = Graphs(ops, self.table)

    def propose(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """Up to `depth` drafts for each wish. The draft caches know all sure tokens afterwards, and no draft."""
        states: list[GpuState] = [wish.state for wish in wishes]
        while sum(len(state.carried) for state in states) > COLUMNS:
            self.read(max(states, key=lambda state: len(state.carried)))
        parts = []
        for wish, state in zip(wishes, states, strict=True):
            state.reserve(state.position + wish.depth)
            parts.append(Part([*state.carried[1:], wish.next], state.slot, state.draft_position, 0, 0))
            state.draft_position, state.carried = state.position, []
        width, depth = sum(len(part.ids) for part in parts), max(wish.depth for wish in wishes)
        # captured before anything is written: capturing leaves traces in what the passes hand on
        self._graphs.capture((width, len(parts)), partial(self._catch_up, width, len(parts)))
        self._graphs.capture((0, len(parts)), partial(self._further, len(parts)))
        self.table.write(step_table(parts))
        guess = self._graphs.run((width, len(parts)), partial(self._catch_up, width, len(parts)))
        if all(wish.pick is None for wish in wishes):
            for _ in range(depth - 1):
                guess = self._next(len(parts))
            found = self.drafts[:depth, : len(parts)].cpu().T.tolist()
            return [line[: wish.depth] for line, wish in zip(found, wishes, strict=True)]
        return self._picked(wishes, guess)

    def _picked(self, wishes: Sequence[DraftWish], guess: Guess) -> list[list[int]]:
        """Draft by draft with the host's choice between them; a wish that stops idles along."""
        found: list[list[int]] = [[] for _ in wishes]
        active = set(range(len(wishes)))
        while True:
            logits = guess.logits.cpu().numpy()
            for index in sorted(active):
                wish = wishes[index]
                token = int(logits[index].argmax()) if wish.pick is None else wish.pick(logits[index])
                if token is not None:
                    found[index].append(token)
                if token is None or len(found[index]) >= wish.depth:
                    active.discard(index)
            if not active:
                return found
            last = [line[-1] if line else 0 for line in found]
            self.table.table[0, : len(last)] = torch.tensor(last, dtype=torch.int32).to(self.table.table.device)
            guess = self._next(len(wishes))

    def read(self, state: GpuState) -> None:
        """Keys and values for all carried tokens but the last, whose next token is not sure yet."""
        ids = state.carried[1:]
        if not ids:
            return
        columns = self._columns(ids, state)
        self._layer(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
        state.draft_position += len(ids)
        state.carried = state.carried[-1:]

    def read_prompt(self, state: GpuState, ids: Sequence[int], streams: torch.Tensor) -> None:
        """Take streams [T, S, H] that the trunk gave for the prompt tokens `ids`, the last of which is carried on."""
        self.read(state)
        if state.carried:
            columns = self._columns(ids[:1], state)
            self._layer(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
            state.draft_position += 1
        if len(ids) > 1:
            self._layer(self._columns(ids[1:], state), streams[:-1].contiguous())
            state.draft_position += len(ids) - 1
        state.carried = list(ids[-1:])

    def _columns(self, ids: Sequence[int], state: GpuState) -> Columns:
        return Columns.of_prompt(
            torch.tensor(list(ids), dtype=torch.int32).to(self.ops.device), state.slot, state.draft_position
        )

    def _layer(self, columns: Columns, streams: torch.Tensor) -> torch.Tensor:
        """From the trunk's streams and the tokens after them to the layer's own streams."""
        ops = self.ops
        joined = ops.join(columns, streams)
        assert ops.weights.draft is not None
        run_layer(ops, ops.weights.draft.layer, joined, ops.pool.layers[-1], columns)
        return joined

    def _guess(self, streams: torch.Tensor, parts: int) -> Guess:
        draft = self.ops.weights.draft
        assert draft is not None
        logits = self.ops.head(draft.head_mix, draft.output, streams)
        follow(self.table.table, self.ops.argmax(logits), self.drafts, self.turn)
        self.streams[:parts] = streams
        return Guess(streams, logits)

    def _catch_up(self, width: int, parts: int) -> Guess:
        self.turn.zero_()
        columns = Columns.of_step(self.table.table, width)
        streams = self._layer(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
        return self._guess(last_rows(streams, self.table.table, parts), parts)

    def _further(self, parts: int) -> Guess:
        columns = Columns.of_step(self.table.table, parts)
        return self._guess(self._layer(columns, self.streams[:parts]), parts)

    def _next(self, parts: int) -> Guess:
        return self._graphs.run((0, parts), partial(self._further, parts))
