"""How a budget of main memory is shared out on a machine that computes on its CPU."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from ..arch.config import Config
from ..arch.network import Network
from ..errors import MachineError
from .resident import dense_bytes, expert_layers, routed

PROCESS = 96 << 20  # bytes that the process grows by beside what is counted here
STATES_SHARE = 4  # one part in so many of what is left may go to keys and values that nobody asked for
SPARE_TOKENS = 512  # of keys and values: pages are filled in part, and copied
CHECKPOINTS = 10  # eighths: kept states may take an eighth of all states
WORK_SHARE = 8  # and to a chunk's activations
CHUNK = 512  # prompt tokens a pass where all experts are in memory
CHUNKS = (4096, 2048, 1024, 512, 256, 128)  # where they are not: each pass may have to read them all
USUAL_CONTEXT = 65_536  # tokens, where nobody asks for so many and experts have to give way for more
LEAST_CONTEXT = 256


@dataclass(frozen=True)
class CpuBudget:
    """Bytes of each part. context: tokens of a sequence; chunk: prompt tokens a pass."""

    total: int
    process: int
    dense: int
    states: int
    work: int
    experts: int
    context: int
    chunk: int


def cpu_budget(network: Network, ram: int, context: int | None, kv_bits: int, sequences: int) -> CpuBudget:
    """What of `ram` bytes goes where. context None: what all experts leave, or a usual one where they do not fit.

    Raises MachineError where the dense weights or the context alone take more.
    """
    config, dense = network.config, dense_bytes(network)
    process = psutil.Process().memory_info().rss + PROCESS
    fixed = sequences * recurrent_bytes(config) * CHECKPOINTS // 8
    token = cache_token_bytes(config, kv_bits)
    rest = ram - process - dense - fixed
    if rest <= 0:
        raise MachineError(
            f"ram is {ram / 1e9:.2f} GB; the process takes {process / 1e9:.2f} GB, dense weights {dense / 1e9:.2f} GB, "
            f"{sequences} sequences {fixed / 1e9:.2f} GB of it, which leaves nothing for experts; allow more"
        )
    work_each = work_token_bytes(config)
    chunk = next((tokens for tokens in CHUNKS if tokens * work_each <= rest // WORK_SHARE), CHUNKS[-1])
    beside = rest - CHUNK * work_each - sum(t.nbytes for e in expert_layers(network) for t in routed(e))
    each = token * CHECKPOINTS // 8
    if beside >= (min(context or USUAL_CONTEXT, config.context_length) + SPARE_TOKENS) * each:
        chunk = CHUNK  # all experts fit
    work = chunk * work_each
    if context is None:
        room = beside if chunk == CHUNK and beside > 0 else min((rest - work) // STATES_SHARE, USUAL_CONTEXT * each)
        most = room // max(each, 1) - SPARE_TOKENS
        context = min(config.context_length, max(LEAST_CONTEXT, most // LEAST_CONTEXT * LEAST_CONTEXT))
    states = (context + SPARE_TOKENS) * token * CHECKPOINTS // 8
    experts = rest - work - states
    if experts <= 0:
        raise MachineError(
            f"ram is {ram / 1e9:.2f} GB; a context of {context} tokens takes {states / 1e9:.2f} GB of the "
            f"{(rest - work) / 1e9:.2f} GB beside the dense weights, which leaves nothing for experts; "
            "ask for a smaller context or allow more"
        )
    return CpuBudget(ram, process, dense, states + fixed, work, experts, context, chunk)


def cache_token_bytes(config: Config, kv_bits: int) -> int:
    """Bytes that a token's keys, values and index keys take in all attention layers."""
    layers = len(config.recurrent) - sum(config.recurrent) + config.draft_layers
    cells = config.kv_heads * 2 * config.head_dim
    scales = cells // 32 * 4 if kv_bits == 8 else 0
    return layers * (cells * kv_bits // 8 + scales + 4 * config.index_dim)


def recurrent_bytes(config: Config) -> int:
    """Bytes of a sequence's recurrent states: float32 matrices and columns, and the factors of open tokens."""
    heads, dim = config.gdn_value_heads, config.gdn_dim
    one = 4 * (heads * dim * dim + (config.conv_kernel + 16) * config.gdn_channels + 16 * heads * 3 * dim)
    return sum(config.recurrent) * one + 4 * config.streams * config.hidden * 64


def work_token_bytes(config: Config) -> int:
    """Bytes of activations that a prompt token needs while its chunk is read, at most."""
    wide = config.streams * config.hidden
    uses = config.experts_used + 1
    experts = uses * (4 * config.hidden + 8 * config.expert_size)  # outputs of each use, and its hidden values
    mixer = config.gdn_channels + 4 * config.gdn_inner + 3 * config.heads * config.head_dim
    return 4 * (3 * wide + 4 * config.hidden) + 6 * mixer + experts
