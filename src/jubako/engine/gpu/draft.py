"""The draft layer on the GPU: catch up on what is sure, then guess token after token; two captured graphs.

    carried streams ┐                        ┌ follow: id of the draft, next position
    sure ids ───────┴ join → layer → last ───┴→ join → layer → …  → ids into the table of the step that verifies them

Drafts never change the text, so nothing here need give the same bits for every width. `engine.draft_layer` is the same
on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ...ops.gpu.carry import follow, kept_streams, last_rows
from ...ops.gpu.columns import Columns, Part, step_table
from ...ops.gpu.guess import Choice, insert
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import Choose, GpuOps
from ...ops.gpu.sequence import GpuState
from ...ops.gpu.state import AttentionMemory
from ..executor import DraftWish
from .forward import run_layer
from .graph import Graphs


class Drafts:
    """Proposes for up to 16 columns of sequences at once."""

    def __init__(self, ops: GpuOps, graphs: Graphs) -> None:
        self.ops, self.desk, self._graphs = ops, graphs.desk, graphs
        config = ops.config
        self._turn = torch.zeros(1, dtype=torch.int32, device=ops.device)
        self._streams = torch.zeros(COLUMNS, config.streams, config.hidden, device=ops.device)
        memory = ops.pool.layers[-1]
        assert isinstance(memory, AttentionMemory)
        self._choice = Choice(config.index_blocks(memory.ratio) if memory.ratio else 0, ops.device)

    def capture(self, width: int, parts: int) -> None:
        """Have drafts of so many sequences ready that bring `width` columns."""
        self._graphs.capture(("first draft", width, parts), partial(self._catch_up, width, parts))
        self._graphs.capture(("draft", parts), partial(self._further, parts))

    def catch_up_table(self, wishes: Sequence[DraftWish]) -> list[Part]:
        """What the first pass reads: all that is sure. The states count it as read."""
        states: list[GpuState] = [wish.state for wish in wishes]
        while sum(len(state.carried) for state in states) > COLUMNS:
            self.read(max(states, key=lambda state: len(state.carried)))
        parts = []
        for wish, state in zip(wishes, states, strict=True):
            parts.append(Part([*state.carried[1:], wish.next], state.slot, state.draft_position, 0, 0))
            state.draft_position, state.carried = state.position, []
        return parts

    def launch(self, parts: Sequence[Part], depth: int) -> None:
        """Drafts of the likeliest tokens by the desk's tables, which say the same: to the desk, and into its step."""
        width = sum(len(part.ids) for part in parts)
        self._first(width, len(parts))
        for _ in range(depth - 1):
            self._next(len(parts))

    def propose(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """Up to `depth` drafts for each wish. The draft caches know all sure tokens afterwards, and no draft."""
        for wish in wishes:
            wish.state.reserve(wish.state.position + wish.depth)
        parts = self.catch_up_table(wishes)
        if any(wish.pick is not None for wish in wishes):
            return self._picked(wishes, parts)
        depth = max(wish.depth for wish in wishes)
        self.desk.write(draft=step_table(parts))
        self.launch(parts, depth)
        found = self.desk.fetch()[1:]
        return [found[: wish.depth, part].tolist() for part, wish in enumerate(wishes)]

    def _picked(self, wishes: Sequence[DraftWish], parts: Sequence[Part]) -> list[list[int]]:
        """Draft by draft with the host's choice between them; a wish that stops idles along."""
        count = len(parts)
        self.desk.write(draft=step_table(parts))
        self._first(sum(len(part.ids) for part in parts), count)
        found: list[list[int]] = [[] for _ in wishes]
        active = set(range(count))
        for turn in range(1, COLUMNS):
            rows = self.desk.logits_of(0, self.desk.fetch()[turn, :count].tolist())
            for index in sorted(active):
                wish, row = wishes[index], rows[index]
                token = row.likeliest if wish.pick is None else wish.pick(row)
                if token is not None:
                    found[index].append(token)
                if token is None or len(found[index]) >= wish.depth:
                    active.discard(index)
            if not active:
                break
            self.desk.choose([line[-1] if line else 0 for line in found])
            self._next(count)
        return found

    def read(self, state: GpuState) -> None:
        """Keys and values for all carried tokens but the last, whose next token is not sure yet."""
        ids = state.carried[1:]
        if not ids:
            return
        columns = self._columns(ids, state)
        self._layer(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
        state.draft_position += len(ids)
        state.carried = state.carried[-1:]

    def read_prompt(self, state: GpuState, ids: Sequence[int], on_device: torch.Tensor, streams: torch.Tensor) -> None:
        """Take streams [T, S, H] that the trunk gave for the prompt tokens `ids`, the last of which is carried on.

        on_device: the ids, int32 [T].
        """
        self.read(state)
        if state.carried:
            columns = Columns.of_prompt(on_device[:1], state.slot, state.draft_position)
            self._layer(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
            state.draft_position += 1
        if len(ids) > 1:
            columns = Columns.of_prompt(on_device[1:], state.slot, state.draft_position)
            self._layer(columns, streams[:-1].contiguous())
            state.draft_position += len(ids) - 1
        state.carried = list(ids[-1:])

    def _columns(self, ids: Sequence[int], state: GpuState) -> Columns:
        return Columns.of_prompt(
            torch.tensor(list(ids), dtype=torch.int32).to(self.ops.device), state.slot, state.draft_position
        )

    def _layer(self, columns: Columns, streams: torch.Tensor, choose: Choose | None = None) -> torch.Tensor:
        """From the trunk's streams and the tokens after them to the layer's own streams."""
        ops = self.ops
        joined = ops.join(columns, streams)
        assert ops.weights.draft is not None
        run_layer(ops, ops.weights.draft.layer, joined, ops.pool.layers[-1], columns, choose=choose)
        return joined

    # The two graphs, and what they hold

    def _first(self, width: int, parts: int) -> None:
        self._graphs.run(("first draft", width, parts), partial(self._catch_up, width, parts))

    def _next(self, parts: int) -> None:
        self._graphs.run(("draft", parts), partial(self._further, parts))

    def _catch_up(self, width: int, parts: int) -> None:
        self._turn.zero_()
        columns = Columns.of_step(self.desk.draft, width)
        carried = kept_streams(self.ops.pool.carry, columns, self.ops.config.streams)
        streams = self._layer(columns, carried, self._choice.first(self.ops.select))
        self._guess(last_rows(streams, self.desk.draft, parts), parts)

    def _further(self, parts: int) -> None:
        columns = Columns.of_step(self.desk.draft, parts)
        self._guess(self._layer(columns, self._streams[:parts], self._choice.again), parts)

    def _guess(self, streams: torch.Tensor, parts: int) -> None:
        """From streams [parts, S, H] to a draft for each part, on the desk; its table becomes that of the next pass."""
        draft, logits = self.ops.weights.draft, self.desk.logits[:parts]
        assert draft is not None
        self.ops.head(draft.head_mix, draft.output, streams, logits)
        follow(self.desk.draft, self.ops.argmax(logits), self.desk.drafts, self._turn)
        insert(self.desk.step, self.desk.drafts)
        self._streams[:parts] = streams
