"""Microseconds of every operation but the matrix products, one token, at the widths of Qwen3.8-Flash-Next.

    python tools/bench_ops.py [--isa avx2] [--threads N] [--depth TOKENS] [--tokens T]

Columns: median wall time, and the processor time of all threads together, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from jubako import _cpu

HIDDEN, STREAMS, RANK = 2560, 4, 320
HEADS, KV_HEADS, DIM, PAIRS = 24, 2, 256, 32
KEY_HEADS, VALUE_HEADS, GDN_DIM, TAPS = 16, 48, 128, 4
INDEX_HEADS, INDEX_DIM, RATIO, BUDGET = 4, 128, 4, 512
EXPERTS, USED, VOCABULARY = 512, 10, 248_320

rng = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def report(name: str, operation: Callable[[], object], tokens: int, repeats: int = 300) -> None:
    for _ in range(5):
        operation()
    wall = []
    busy = time.process_time()
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        wall.append(time.perf_counter() - start)
    busy = (time.process_time() - busy) / repeats
    print(f"{name:44} {np.median(wall) * 1e6 / tokens:9.1f} {busy * 1e6 / tokens:9.1f}")


def hyper(tokens: int) -> None:
    """The whole mixer, and its matrix products alone: the difference is what the operation itself takes."""
    wide = STREAMS * HIDDEN
    streams, out, inject = normal(tokens, STREAMS, HIDDEN), normal(tokens, HIDDEN), normal(tokens, STREAMS)
    shapes = ((RANK, wide // 32 * 34), (wide, RANK // 32 * 34))
    down, up = (_cpu.Weight(rng.integers(0, 120, shape, dtype=np.uint8), 8) for shape in shapes)
    writes = _cpu.Weight(normal(STREAMS, wide).view(np.uint8), 0)
    mix = _cpu.HyperMix(normal(wide), down, up, writes, STREAMS, 1e-6)
    x, low = normal(tokens, wide), normal(tokens, RANK)
    report("hyper_mix in Q8_0", lambda: mix.mix(streams), tokens)
    report("  its products alone", lambda: (_cpu.linear_many([down, writes], x), _cpu.linear(up, low)), tokens)
    report("hyper_combine", lambda: _cpu.hyper_combine(streams, inject, out), tokens)


def gdn(tokens: int) -> None:
    channels = (2 * KEY_HEADS + VALUE_HEADS) * GDN_DIM
    kernel = _cpu.Gdn(
        normal(channels, TAPS), normal(VALUE_HEADS), -np.abs(normal(VALUE_HEADS)), normal(GDN_DIM), KEY_HEADS, 1e-6
    )
    states = [kernel.new_state() for _ in range(36)]
    qkv, z, beta, alpha = (normal(tokens, n) for n in (channels, VALUE_HEADS * GDN_DIM, VALUE_HEADS, VALUE_HEADS))
    report("gdn, one state", lambda: kernel.run(qkv, z, beta, alpha, states[0]), tokens)
    turn = iter(range(10**9))
    report("gdn, 36 layers' states in turn", lambda: kernel.run(qkv, z, beta, alpha, states[next(turn) % 36]), tokens)


def attention(tokens: int, depth: int) -> None:
    rope = _cpu.Rope((1e7 ** (-np.arange(PAIRS) / PAIRS)).astype(np.float32), 1.0, depth + 4096)
    kernel = _cpu.Attention(normal(DIM), normal(DIM), HEADS, KV_HEADS, 1e-6, rope)
    indexer = _cpu.Indexer(normal(INDEX_DIM), normal(INDEX_DIM), INDEX_HEADS, RATIO, BUDGET, 1e-6, rope)
    for bits in (8, 16):
        state = _cpu.AttentionState(depth + 4096, KV_HEADS, DIM, bits, RATIO, INDEX_DIM)
        q, k, v = normal(512, HEADS * 2 * DIM), normal(512, KV_HEADS * DIM), normal(512, KV_HEADS * DIM)
        for start in range(0, depth, 512):
            kernel.prepare(q, k, v, state, start)
            indexer.update(normal(512, INDEX_DIM), state, start)

        def prepare(
            state: _cpu.AttentionState = state, q: np.ndarray = q, k: np.ndarray = k, v: np.ndarray = v
        ) -> None:
            kernel.prepare(q[:tokens], k[:tokens], v[:tokens], state, depth)
            state.truncate(depth)

        report(f"attention_prepare, {bits} bit", prepare, tokens)
        queries, gate = kernel.prepare(q[:tokens], k[:tokens], v[:tokens], state, depth)
        raw, index_q = normal(tokens, INDEX_DIM), normal(tokens, INDEX_HEADS * INDEX_DIM)
        indexer.update(raw, state, depth)
        report(f"index_select over {depth // RATIO} blocks", lambda: indexer.select(index_q, state, depth), tokens)  # noqa: B023
        chosen = indexer.select(index_q, state, depth)
        report(
            f"sparse_attention, {bits} bit, 2048 cells and tail",
            lambda: _cpu.sparse_attention(queries, gate, state, *chosen, depth),  # noqa: B023
            tokens,
        )


def choose(tokens: int) -> None:
    logits, words = normal(tokens, EXPERTS), normal(tokens, VOCABULARY)
    report("route, 10 of 512", lambda: _cpu.route(logits, USED), tokens)
    report("argmax of 248,320", lambda: _cpu.argmax(words), tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=["avx2", "avx512"], default=_cpu.isa())
    parser.add_argument("--threads", type=int, default=_cpu.default_threads())
    parser.add_argument("--depth", type=int, default=65_536)
    parser.add_argument("--tokens", type=int, default=1, help="tokens per call; times are per token")
    arguments = parser.parse_args()
    _cpu.set_isa(arguments.isa)
    _cpu.set_threads(arguments.threads)
    print(f"{arguments.isa}, {arguments.threads} threads, {arguments.tokens} tokens a call{'':10} wall µs    CPU µs")
    hyper(arguments.tokens)
    gdn(arguments.tokens)
    attention(arguments.tokens, arguments.depth)
    choose(arguments.tokens)


if __name__ == "__main__":
    main()
