"""Launches of the kernels of state at the network's sizes, for compile_kernels.py to record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from jubako.measure.geometry import network_config
from jubako.ops.gpu.attention import sparse_attention
from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.gdn import gdn_columns, settle
from jubako.ops.gpu.gdn_chunk import gdn_prompt
from jubako.ops.gpu.homes import HomedPages, Homes
from jubako.ops.gpu.launch import COLUMNS
from jubako.ops.gpu.prepare import Rope, attention_prepare
from jubako.ops.gpu.select import Selector
from jubako.ops.gpu.state import PAGE, AttentionMemory, GdnMemory

CONTEXT = 262144
CPU = torch.device("cpu")


def step_columns(tokens: int) -> Columns:
    return Columns.of_step(torch.from_numpy(step_table([Part([0] * tokens, 0, 100, 0, 0)])), tokens, early=True)


def prompt_columns(tokens: int, start: int = CONTEXT // 2) -> Columns:
    """A piece of a prompt; late in a context each token gathers its own cells."""
    return Columns.of_prompt(torch.zeros(tokens, dtype=torch.int32), 0, start)


def delta_net(columns: Columns, dim: int = 0) -> None:
    """A step, and its columns entered into the state; or a prompt. dim: of heads, the network's if it is 0."""
    config, tokens = network_config(), columns.tokens
    config = replace(config, gdn_dim=dim or config.gdn_dim)
    heads, dim, channels = config.gdn_value_heads, config.gdn_dim, config.gdn_channels
    memory = GdnMemory.empty(config, 1, CPU)
    weights = SimpleNamespace(
        conv=torch.zeros(config.conv_kernel, channels),
        dt_bias=torch.zeros(heads),
        a=torch.zeros(heads),
        norm=torch.zeros(dim),
    )
    sizes = [channels, heads * dim, heads, heads]
    projected = torch.zeros(tokens, sum(sizes)).split_with_sizes(sizes, 1)
    if columns.parts is None:
        gdn_prompt(weights, projected, memory, columns, config.eps)
        return
    gdn_columns(weights, projected, memory, columns, config.eps)
    settle(memory, 0, 1, 0)


def attention(columns: Columns, bits: int, far: bool = False) -> None:
    """What comes before, the choice of blocks, attention. far: some of the cells lie in main memory."""
    config = network_config()
    table = torch.zeros(1, CONTEXT // PAGE, dtype=torch.int32)
    ratio = 4
    homes = Homes(HomedPages(4, 2), table) if far else None
    memory = AttentionMemory.empty(config, ratio, bits, table, 4, homes)
    norms = {"q_norm": torch.zeros(config.head_dim), "k_norm": torch.zeros(config.head_dim)}
    index = {"q_norm": torch.zeros(config.index_dim), "k_norm": torch.zeros(config.index_dim)}
    weights = SimpleNamespace(**norms, indexer=SimpleNamespace(**index))
    key_width = config.kv_heads * config.head_dim
    sizes = [config.heads * 2 * config.head_dim, key_width, key_width, config.index_heads * config.index_dim]
    projected = torch.zeros(columns.tokens, sum(sizes) + config.index_dim).split_with_sizes(
        [*sizes, config.index_dim], 1
    )
    rope = Rope(config.rope_frequencies(), config.rope_magnitude)
    ready = attention_prepare(
        weights, projected, memory, columns, rope, config.heads, config.kv_heads, config.index_heads, config.eps
    )
    assert ready.index is not None
    selector = Selector(config.index_blocks(ratio), CONTEXT // ratio, COLUMNS, CPU)
    blocks, chosen = selector(ready.index, memory, columns)
    sparse_attention(ready.queries, ready.gate, memory, columns, blocks, chosen)


def families() -> dict[str, Callable[[], Any]]:
    """What is compiled: a name, and a call that launches it."""
    return {
        "delta net": lambda: delta_net(step_columns(1)),
        "prompt: delta net": lambda: delta_net(prompt_columns(128)),
        "prompt: delta net, narrow heads": lambda: delta_net(prompt_columns(128), 32),
        "attention, 8 bit": lambda: attention(step_columns(1), 8),
        "attention, 16 bit": lambda: attention(step_columns(1), 16),
        "attention, cells in main memory": lambda: attention(step_columns(1), 8, far=True),
        "prompt: attention": lambda: attention(prompt_columns(32), 8),
        "prompt: attention, early": lambda: attention(prompt_columns(32, 4000), 8),
        "prompt: attention, early, cells in main memory": lambda: attention(prompt_columns(32, 4000), 8, far=True),
        "prompt: attention, cells in main memory": lambda: attention(prompt_columns(32), 8, far=True),
    }
