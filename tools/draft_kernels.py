"""Launches of what lies between drafts at the network's sizes, for compile_kernels.py to record."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from jubako.engine.gpu.step import advance
from jubako.measure.geometry import network_config
from jubako.ops.gpu.activation import room_for
from jubako.ops.gpu.carry import CARRY, keep_streams, kept_streams
from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.draft_join import Join
from jubako.ops.gpu.draft_keys import store_keys
from jubako.ops.gpu.draft_table import Following, take, take_new
from jubako.ops.gpu.guess import Choice, last_rows
from jubako.ops.gpu.matrix import Matrix, Projections
from jubako.ops.gpu.planar import LAYOUTS
from jubako.ops.gpu.prepare import Prepared, Rope
from jubako.ops.gpu.route import largest_of
from jubako.ops.gpu.state import PAGE, AttentionMemory
from jubako.quant import BY_NAME

CPU = torch.device("cpu")
CONFIG = network_config()
HIDDEN, STREAMS = CONFIG.hidden, CONFIG.streams
TYPE = BY_NAME["Q4_0"]


def matrix(rows: int, cols: int) -> Matrix:
    return Matrix(torch.zeros(LAYOUTS["Q4_0"].matrix_bytes(rows, cols), dtype=torch.uint8), TYPE, rows, cols)


def columns_of(tokens: int) -> Columns:
    return Columns.of_step(torch.from_numpy(step_table([Part([0] * tokens, 0, 100, 0, 0)])), tokens)


def join() -> Join:
    gammas = (torch.zeros(STREAMS * HIDDEN), torch.zeros(HIDDEN))
    return Join(matrix(64, HIDDEN), matrix(64, 2 * HIDDEN), *gammas, torch.ones(64, STREAMS), CONFIG.eps)


def following() -> Following:
    table, drafts = torch.zeros(9, 16, dtype=torch.int32), torch.zeros(15, 16, dtype=torch.int32)
    best = largest_of(torch.zeros(1, CONFIG.vocabulary))
    return Choice(CONFIG.index_blocks(4), 4, CPU).following(table, drafts, best)


def joined(tokens: int) -> None:
    """From the ring, and from the last pass."""
    columns = columns_of(tokens)
    out = torch.zeros(tokens, STREAMS, HIDDEN)
    join().step(columns, torch.zeros(1, CARRY, STREAMS * HIDDEN), out)
    join().step(columns, out, out, following())
    keep_streams(out, torch.zeros(1, CARRY, STREAMS * HIDDEN), columns)
    kept_streams(torch.zeros(1, CARRY, STREAMS * HIDDEN), columns, STREAMS)


def between() -> None:
    """What goes on from a part's last column, what follows the head, and what ends a step."""
    columns, wide = columns_of(3), CONFIG.heads * CONFIG.head_dim
    index = torch.zeros(3, CONFIG.index_heads, CONFIG.index_dim)
    ready = Prepared(torch.zeros(3, CONFIG.heads, CONFIG.head_dim), torch.zeros(3, wide), index)
    to = torch.zeros(1, STREAMS, HIDDEN)
    last, _, _ = last_rows(columns, 1, ready, torch.zeros(3, STREAMS, HIDDEN), torch.zeros(3, STREAMS), to)
    memory = AttentionMemory.empty(CONFIG, 4, 8, torch.zeros(1, 4, dtype=torch.int32), 4)
    choice = Choice(CONFIG.index_blocks(4), 4, CPU)
    choice.first(lambda *_: (choice.blocks[:1], choice.counts[:1]))(index, memory, last)
    after = following()
    after.follow()
    take(after.table, after.table)
    take_new(torch.zeros(10, 16, dtype=torch.int32), after.table, after.counts, after.drafts)
    for draft in (after.table, None):
        advance(after.table, after.best, after.counts, after.counts, draft, 0, 4)


def remembered(tokens: int) -> None:
    """Keys and values of a prompt."""
    memory = AttentionMemory.empty(CONFIG, 4, 8, torch.zeros(1, 64, dtype=torch.int32), PAGE)
    kv, index = CONFIG.kv_heads * CONFIG.head_dim, CONFIG.index_dim
    order, first = [], 0
    for rows in (64, kv, kv, 64, index):
        order.append((0, first, rows))
        first += rows
    norms = {"q_norm": torch.zeros(CONFIG.head_dim), "k_norm": torch.zeros(CONFIG.head_dim)}
    indexer = SimpleNamespace(q_norm=torch.zeros(index), k_norm=torch.zeros(index))
    weights = Projections((matrix(first, HIDDEN),), tuple(order))
    layer = SimpleNamespace(**norms, projections=weights, indexer=indexer)
    columns = Columns.of_prompt(torch.zeros(tokens, dtype=torch.int32), 0, 100)
    rope = Rope(CONFIG.rope_frequencies(), CONFIG.rope_magnitude)
    mixed = torch.zeros(tokens, HIDDEN) if tokens > 16 else room_for(tokens, HIDDEN, True, CPU)
    store_keys(layer, mixed, memory, columns, rope, CONFIG.kv_heads, CONFIG.eps)


def families() -> dict[str, Callable[[], None]]:
    """A name, and a call that launches what goes by it."""
    return {
        "drafts: join": lambda: joined(1),
        "drafts: between": between,
        "drafts: keys": lambda: remembered(32),
    }
