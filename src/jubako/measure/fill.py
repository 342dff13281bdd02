"""A long context without reading one: caches filled with random rows, so that decoding at depth can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.session import Session

CHUNK = 1024  # tokens whose rows are made at a time


def fill_caches(session: Session, ids: Sequence[int]) -> bool:
    """Take `ids` as read; False where the engine at work keeps its caches otherwise (the reference).

    Attention and index keys get random rows, through the operations that a prompt would use; recurrent states stay as
    they are. What follows costs what it would after a real prompt, and means nothing.
    """
    session.check_fits(ids, session.length)
    ops = getattr(session.executor, "ops", None)
    if ops is None:
        return False
    generator = np.random.default_rng(0)
    for start in range(0, len(ids), CHUNK):
        part = list(ids[start : start + CHUNK])
        for layer, memory in zip(ops.weights.layers, session.state.layers, strict=True):
            if hasattr(layer.mixer, "indexer"):
                _fill_layer(ops, layer.mixer, memory, session.state.position, len(part), generator)
        if session.state.draft is not None:
            draft_position = session.state.draft_position
            _fill_layer(ops, ops.weights.draft.layer.mixer, session.state.draft, draft_position, len(part), generator)
            session.state.draft_position += len(part)
        session.state.advance(part)
        session.ids.extend(part)
    return True


def _fill_layer(
    ops: Any, attention: Any, cache: Any, position: int, tokens: int, generator: np.random.Generator
) -> None:
    """Random keys, values and index keys at `position` and after."""
    config = ops.config
    heads = np.zeros((tokens, 2 * config.heads * config.head_dim), np.float32)
    keys, values = generator.standard_normal((2, tokens, config.kv_heads * config.head_dim), np.float32)
    ops.attention_prepare(attention, heads, keys, values, cache, position)
    if attention.indexer is not None:
        index_keys = generator.standard_normal((tokens, config.index_dim), np.float32)
        ops.index_update(attention.indexer, index_keys, cache, position)
