"""The draft layer on the GPU: catch up on what is sure, then guess token after token; two captured graphs.

    carried streams ┐
    sure ids ───────┴ join → keys, values → last column → head → join with the draft → layer → head → … → drafts

Tokens that are sure already go no further than keys and values, those of prompts too. Drafts never change the text, so
nothing here need give the same bits for every width. `engine.draft_layer` is the same on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...ops.gpu.carry import kept_streams
from ...ops.gpu.columns import Columns, Part, step_table
from ...ops.gpu.draft_join import TOGETHER
from ...ops.gpu.draft_table import Following, take
from ...ops.gpu.guess import Choice, last_rows
from ...ops.gpu.launch import COLUMNS
from ...ops.gpu.ops import Choose, GpuOps
from ...ops.gpu.route import PIECE, largest_of
from ...ops.gpu.sequence import GpuState
from ...ops.gpu.state import AttentionMemory
from ...ops.gpu.weights import Gdn
from ..executor import DraftWish
from .graph import Graphs


class Drafts:
    """Proposes for up to 16 columns of sequences at once."""

    def __init__(self, ops: GpuOps, graphs: Graphs) -> None:
        self.ops, self.desk, self._graphs = ops, graphs.desk, graphs
        config = ops.config
        self._streams = torch.zeros(COLUMNS, config.streams, config.hidden, device=ops.device)
        self._best = torch.zeros(COLUMNS, -(-config.vocabulary // PIECE), dtype=torch.int64, device=ops.device)
        memory = ops.pool.layers[-1]
        assert isinstance(memory, AttentionMemory)
        self._memory = memory
        self._choice = Choice(config.index_blocks(memory.ratio) if memory.ratio else 0, memory.ratio, ops.device)

    @property
    def captured(self) -> int:
        """How many graphs there are, those of steps too."""
        return len(self._graphs)

    def capture(self, width: int, parts: int, depth: int) -> None:
        """Have `depth` drafts of so many sequences ready that bring `width` columns."""
        self._graphs.capture(("first draft", width, parts), partial(self._catch_up, width, parts))
        self._graphs.capture(("drafts", parts, depth), partial(self._ahead, parts, depth))

    def capture_behind(self, width: int, parts: int, depth: int) -> None:
        """Have those ready that are made behind a step of `width` columns."""
        self._graphs.capture(("drafts behind", width, parts, depth), partial(self._behind, width, parts, depth))

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

    def start(self, wishes: Sequence[DraftWish]) -> list[Part]:
        """Catch up on what is sure and look for the first draft of each wish; what is read for that. Nothing is waited
        for.

        There must be room for the drafts.
        """
        parts = self.catch_up_table(wishes)
        self.desk.write(draft=step_table(parts))
        self.first(parts, max(wish.depth for wish in wishes))
        return parts

    def first(self, parts: Sequence[Part], depth: int) -> None:
        """The first pass by the desk's table, which says the same, before `depth` drafts."""
        width, count = sum(len(part.ids) for part in parts), len(parts)
        self.capture(width, count, depth)  # all of it now: a graph runs once before, over what a pass leaves
        self._graphs.run(("first draft", width, count), partial(self._catch_up, width, count))

    def go_on(self, parts: int, depth: int) -> None:
        """`depth` drafts of the likeliest tokens for each of so many parts, the first of which is looked for."""
        self._graphs.run(("drafts", parts, depth), partial(self._ahead, parts, depth))

    def behind(self, width: int, parts: int, depth: int) -> None:
        """`depth` drafts after a step of `width` columns, by the table that it leaves for them."""
        self._graphs.run(("drafts behind", width, parts, depth), partial(self._behind, width, parts, depth))

    def propose(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """Up to `depth` drafts for each wish. The draft caches know all sure tokens afterwards, and no draft."""
        for wish in wishes:
            wish.state.reserve(wish.state.position + wish.depth)
        if any(wish.pick is not None for wish in wishes):
            return self._picked(wishes)
        parts = self.start(wishes)
        self.go_on(len(parts), max(wish.depth for wish in wishes))
        found = self.desk.fetch()[1:COLUMNS]
        return [found[: wish.depth, part].tolist() for part, wish in enumerate(wishes)]

    def _picked(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """Draft by draft with the host's choice between them; a wish that stops idles along."""
        count = len(wishes)
        self._graphs.capture(("further draft", count), partial(self._further, count))
        self.start([wish._replace(depth=1) for wish in wishes])
        self.go_on(count, 1)
        found: list[list[int]] = [[] for _ in wishes]
        active = set(range(count))
        lie = self.desk.draft_rows(count)
        for turn in range(1, COLUMNS):
            self._graphs.look(lie.start, lie.stop)
            rows = self.desk.logits_of(lie.start, self.desk.fetch()[turn, :count].tolist())
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
            self._graphs.run(("further draft", count), partial(self._further, count))
        return found

    def read(self, state: GpuState) -> None:
        """Keys and values for all carried tokens but the last, whose next token is not sure yet."""
        ids = state.carried[1:]
        if not ids:
            return
        columns = self._columns(ids, state)
        self._remember(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
        state.draft_position += len(ids)
        state.carried = state.carried[-1:]

    def read_prompt(self, state: GpuState, ids: Sequence[int], on_device: torch.Tensor, streams: torch.Tensor) -> None:
        """Take streams [T, S, H] that the trunk gave for the prompt tokens `ids`, the last of which is carried on.

        on_device: the ids, int32 [T].
        """
        self.read(state)
        if state.carried:
            columns = Columns.of_prompt(on_device[:1], state.slot, state.draft_position)
            self._remember(columns, kept_streams(self.ops.pool.carry, columns, self.ops.config.streams))
            state.draft_position += 1
        for first in range(1, len(ids), TOGETHER):
            some = on_device[first : first + TOGETHER]
            columns = Columns.of_prompt(some, state.slot, state.draft_position)
            self._remember(columns, streams[first - 1 : first - 1 + len(some)])
            state.draft_position += len(some)
        state.carried = list(ids[-1:])

    def _columns(self, ids: Sequence[int], state: GpuState) -> Columns:
        return Columns.of_prompt(
            torch.tensor(list(ids), dtype=torch.int32).to(self.ops.device), state.slot, state.draft_position
        )

    def _remember(self, columns: Columns, streams: torch.Tensor) -> None:
        """Keys and values for the trunk's streams [T, S, H] of up to TOGETHER tokens, and the tokens after them."""
        ops, draft = self.ops, self.ops.weights.draft
        assert draft is not None
        if columns.tokens <= COLUMNS:
            mixed, _ = ops.hyper_mix(draft.join.step(columns, streams), draft.layer.hc_attn)
        else:
            joined, pending = draft.join.prompt(columns, streams)
            mixed, _ = ops.hyper_mix(joined, draft.layer.hc_attn, pending)
        ops.remember(draft.layer.mixer, mixed, self._memory, columns)

    # The graphs, and what they hold

    def _catch_up(self, width: int, parts: int) -> None:
        take(self.desk.caught_up, self.desk.draft)
        self._look_ahead(width, parts)

    def _look_ahead(self, width: int, parts: int) -> None:
        """Read `width` columns by the desk's table; what tells the draft after the last one of each part."""
        columns = Columns.of_step(self.desk.draft, width)
        self._guess(self._layer(columns, self.ops.pool.carry, parts, self._choice.first(self.ops.select)), parts)

    def _ahead(self, parts: int, depth: int) -> None:
        """Passes from draft to draft, and the last draft."""
        columns, after = Columns.of_step(self.desk.draft, parts), self._following(parts)
        for _ in range(depth - 1):
            self._guess(self._layer(columns, self._streams[:parts], parts, self._choice.again, after), parts)
        after.follow()

    def _behind(self, width: int, parts: int, depth: int) -> None:
        """All of it, by the desk's table."""
        self._look_ahead(width, parts)
        self._ahead(parts, depth)

    def _further(self, parts: int) -> None:
        """A pass from the ids that the desk's table says, and its draft."""
        columns = Columns.of_step(self.desk.draft, parts)
        self._guess(self._layer(columns, self._streams[:parts], parts, self._choice.again), parts)
        self._following(parts).follow()

    def _layer(
        self,
        columns: Columns,
        streams: torch.Tensor,
        parts: int,
        choose: Choose,
        after: Following | None = None,
    ) -> Any:
        """What the head reads of each part's last column; the layer's own streams of these are left in `_streams`.

        streams: those before the columns' tokens, [T, S, H] or the ring that carries them. after: the pass whose drafts
        are these tokens.
        """
        ops, draft, to = self.ops, self.ops.weights.draft, self._streams[:parts]
        assert draft is not None
        layer, mixer, memory = draft.layer, draft.layer.mixer, self._memory
        assert not isinstance(mixer, Gdn)
        joined = draft.join.step(columns, streams, to if columns.tokens == parts else None, after)
        mixed, inject = ops.hyper_mix(joined, layer.hc_attn)
        ready = ops.attention_prepare(mixer, mixed, memory, columns)
        if columns.tokens > parts:
            assert inject is not None
            columns, ready, inject = last_rows(columns, parts, ready, joined, inject, to)
        answer = ops.attend(ready, memory, columns, choose)
        mixed, inject = ops.linear_mix(mixer.output, answer, to, inject, layer.hc_ffn)
        mixed, _ = ops.experts_mix(layer.experts, mixed, to, inject, draft.head_mix)
        return mixed

    def _guess(self, mixed: Any, parts: int) -> None:
        """From what the head reads to what tells the likeliest token of each part."""
        draft, logits = self.ops.weights.draft, self.desk.logits[self.desk.draft_rows(parts)]
        assert draft is not None
        self.ops.linear(draft.output, mixed, logits)
        largest_of(logits, self._best[:parts])

    def _following(self, parts: int) -> Following:
        """What a pass of the desk's table leaves to the next."""
        return self._choice.following(self.desk.draft, self.desk.drafts, self._best[:parts])
