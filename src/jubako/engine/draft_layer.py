"""The draft layer as a page of calls: it reads what the network read, and guesses a few tokens ahead.

At position p it is fed the trunk's streams of token p and the embedding of token p+1; what it gives guesses token p+2.
Its streams stand in for the trunk's when it guesses further. Only its keys and values outlast a pass, so tokens that
are sure already go no further than those; the full layer runs on the last one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import Array, Ops
from .executor import DraftWish
from .forward import run_experts
from .logits import Logits, Row


def remember(ops: Ops, state: Any, ids: Sequence[int], streams: Array, revocable: bool) -> None:
    """Carry what the trunk gave for `ids`, streams [T, S, H], until the tokens that follow are known.

    When there is no more room, the draft layer reads those whose next token is sure.
    """
    carried = len(state.carry_ids)
    if carried + len(ids) <= len(state.carry):
        state.carry[carried : carried + len(ids)] = streams
        state.carry_ids += ids
        return
    sure = carried if revocable else carried + len(ids) - 1
    line = [*state.carry_ids, *ids]
    wide = np.concatenate([state.carry[:carried], streams])
    read(ops, state, line[1 : sure + 1], wide[:sure])
    state.carry_ids = line[sure:]
    state.carry[: len(state.carry_ids)] = wide[sure:]


def read(ops: Ops, state: Any, ids: Sequence[int], streams: Array) -> None:
    """Keys and values for streams [T, S, H] and the tokens `ids` after them, at the end of the layer's cache."""
    draft, position = ops.weights.draft, state.draft_position
    mixer = draft.layer.mixer
    mixed, _ = ops.hyper_mix(join(ops, ids, streams), draft.layer.hc_attn)
    k, v, *index_k = ops.linear_many(_key_projections(mixer), mixed)
    ops.attention_store(mixer, k, v, state.draft, position)
    if mixer.indexer is not None:
        ops.index_update(mixer.indexer, index_k[0], state.draft, position)
    state.draft_position += len(ids)


@dataclass(slots=True)
class _Run:
    """One sequence while it is drafted for. blocks: chosen for the first draft; those finished since are added."""

    wish: DraftWish
    position: int  # of the row at work
    drafts: list[int]
    blocks: Array | None = None
    complete: int = 0  # blocks that were complete when `blocks` were chosen

    def choose(self, blocks: Array, counts: Array, ratio: int) -> None:
        """Take what the index selected for the first draft."""
        self.blocks, self.complete = blocks[0, : counts[0]], (self.position + 1) // ratio

    def chosen(self, ratio: int) -> tuple[Array | None, Array | None]:
        """Blocks and counts for the draft at work."""
        if self.blocks is None:
            return None, None
        finished = np.arange(self.complete, (self.position + 1) // ratio, dtype=np.int32)
        blocks = np.concatenate([self.blocks, finished])[None]
        return blocks, np.array([blocks.shape[1]], np.int32)


def propose(ops: Ops, wishes: Sequence[DraftWish]) -> list[list[int]]:
    """Up to `depth` drafts for each wish. The states' draft caches know all sure tokens afterwards, and no draft."""
    runs = [_Run(wish, wish.state.position - 1, []) for wish in wishes]
    active, streams = runs, _catch_up(ops, runs)
    while True:
        logits = Logits.of(ops.head(ops.weights.draft.head_mix, ops.weights.draft.output, streams))
        rows = [row for row, run in enumerate(active) if _pick(run, logits[row])]
        if not rows:
            break
        active = [active[row] for row in rows]
        streams = _further(ops, active, streams[rows])
    for run in runs:
        run.wish.state.draft.truncate(run.wish.state.draft_position)
    return [run.drafts for run in runs]


def _pick(run: _Run, row: Row) -> bool:
    """Add the draft that these logits give; whether another is wanted."""
    pick = run.wish.pick
    token = int(row.logits.argmax()) if pick is None else pick(row)
    if token is not None:
        run.drafts.append(token)
    return token is not None and len(run.drafts) < run.wish.depth


def _catch_up(ops: Ops, runs: Sequence[_Run]) -> Array:
    """Read all tokens that are sure and not read yet; the layer's streams [runs, S, H] after the last of each run."""
    draft = ops.weights.draft
    mixer, states = draft.layer.mixer, [run.wish.state for run in runs]
    ids = [id for run, state in zip(runs, states, strict=True) for id in (*state.carry_ids[1:], run.wish.next)]
    joined = join(ops, ids, np.concatenate([state.carry[: len(state.carry_ids)] for state in states]))
    last = np.cumsum([len(state.carry_ids) for state in states]) - 1
    mixed, inject = ops.hyper_mix(joined, draft.layer.hc_attn)
    assert inject is not None
    k, v, *index_k = ops.linear_many(_key_projections(mixer), mixed)
    q, *index_q = ops.linear_many(_query_projections(mixer), mixed[last])
    outputs, start = [], 0
    for row, (run, state, end) in enumerate(zip(runs, states, (last + 1).tolist(), strict=True)):
        state.reserve(state.position + run.wish.depth - 1)
        if end - start > 1:
            ops.attention_store(mixer, k[start : end - 1], v[start : end - 1], state.draft, state.draft_position)
        cache, own, key = state.draft, slice(row, row + 1), slice(end - 1, end)
        queries, gate = ops.attention_prepare(mixer, q[own], k[key], v[key], cache, run.position)
        if mixer.indexer is not None:
            ops.index_update(mixer.indexer, index_k[0][start:end], cache, state.draft_position)
            run.choose(*ops.index_select(mixer.indexer, index_q[0][own], cache, run.position), mixer.ratio)
        outputs.append(ops.sparse_attention(queries, gate, cache, *run.chosen(mixer.ratio), run.position))
        state.draft_position, state.carry_ids, start = state.position, [], end
    streams = joined[last]
    ops.hyper_combine(streams, inject[last], ops.linear(mixer.output, np.concatenate(outputs)))
    run_experts(ops, draft.layer, streams)
    return streams


def _further(ops: Ops, runs: Sequence[_Run], streams: Array) -> Array:
    """One token further: from the layer's streams [runs, S, H] and each run's last draft to the streams after it."""
    draft = ops.weights.draft
    mixer = draft.layer.mixer
    streams = join(ops, [run.drafts[-1] for run in runs], streams)
    mixed, inject = ops.hyper_mix(streams, draft.layer.hc_attn)
    q, k, v = ops.linear_many(mixer.projections[:3], mixed)
    outputs = []
    for row, run in enumerate(runs):
        run.position += 1
        own, cache = slice(row, row + 1), run.wish.state.draft
        queries, gate = ops.attention_prepare(mixer, q[own], k[own], v[own], cache, run.position)
        outputs.append(ops.sparse_attention(queries, gate, cache, *run.chosen(mixer.ratio), run.position))
    ops.hyper_combine(streams, inject, ops.linear(mixer.output, np.concatenate(outputs)))
    run_experts(ops, draft.layer, streams)
    return streams


def join(ops: Ops, ids: Sequence[int], streams: Array) -> Array:
    """What the layer starts from: each stream [T, S, H] and the token after it, normed, projected and added."""
    draft = ops.weights.draft
    tokens, count, hidden = streams.shape
    token = ops.linear(draft.fc_embedding, ops.rms_norm(ops.embed(draft.embed, ids), draft.norm_embedding))
    wide = ops.rms_norm(streams.reshape(tokens, count * hidden), draft.norm_hidden)
    joined = ops.linear(draft.fc_hidden, wide.reshape(tokens * count, hidden)).reshape(streams.shape)
    joined += token[:, None, :]
    return joined


def _key_projections(mixer: Any) -> tuple[Any, ...]:
    return (*mixer.projections[1:3], *mixer.projections[4:])


def _query_projections(mixer: Any) -> tuple[Any, ...]:
    return (mixer.projections[0], *mixer.projections[3:4])
