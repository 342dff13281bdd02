"""What long contexts cost whose older keys and values lie in main memory: a random network of full depth on one GPU.

    python tools/bench_context.py --out results [--context 262144] [--near 40960,4096] [--depths 0,65536,250000]

`near` tokens have their keys and values in video memory; 0 stands for all. Steps are timed on the device alone, prompts
with the host. Few experts a layer make no difference to either: a token uses as many.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.engine.gpu.device import open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.gpu.graph import Graphs
from jubako.engine.gpu.step import Steps
from jubako.measure.bench_gpu import GpuBench
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.ops.gpu.ops import index_ratios
from jubako.ops.gpu.state import AttentionMemory, StatePool


class Bench:
    """One network; its memory is laid out anew for each number of near tokens."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.started = arguments, time.perf_counter()
        self.device = open_gpu()
        config = network_config(
            layers=arguments.layers, experts=arguments.experts, context=arguments.context, ngram_rows=100_000
        )
        self.network, source = synthetic_network(config, self.device)
        self.executor = GpuExecutor(
            self.network, self.device, context=arguments.context, tokens=64, sequences=1, source=source
        )
        self.say("network")

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def lay_out(self, near: int) -> GpuBench:
        """Memory for a whole context, with so many tokens in video memory, and noise in it."""
        executor, context = self.executor, self.arguments.context
        executor.pool = executor.ops.pool = None  # type: ignore[assignment]
        torch.cuda.empty_cache()
        ratios, config = index_ratios(self.network), self.network.config
        pool = StatePool(config, ratios, 1, context, context, 8, self.device, near=near or None)
        executor.pool = executor.ops.pool = pool
        executor.steps = Steps(executor.ops, Graphs(executor.ops, executor.desk))
        for memory in pool.layers:
            if isinstance(memory, AttentionMemory) and memory.far is not None:
                codes, scales = memory.far.codes, memory.far.scales
                noise = torch.randint(-127, 128, codes.shape, dtype=torch.int8, device=self.device)
                codes.copy_(noise)
                scales.copy_(torch.full_like(scales, 1 / 127, device=self.device))
        return GpuBench(self.network, executor, 8)

    def run(self) -> None:
        """Every memory at every depth."""
        arguments, lines = self.arguments, []
        arguments.out.mkdir(parents=True, exist_ok=True)
        for near in arguments.near:
            bench = self.lay_out(near)
            pool = self.executor.ops.pool
            memory = {"video": pool.nbytes(), "main": pool.homes.host_bytes if pool.homes else 0}
            for depth in arguments.depths:
                line: dict[str, object] = {"near": near, "depth": depth, **memory}
                for width in arguments.widths:
                    line[f"ms, {width} columns"] = bench.steps(depth, width, repeats=3).milliseconds
                for tokens in arguments.prompts:
                    line[f"tok/s, prompt of {tokens}"] = bench.prompt(tokens, depth, repeats=1).tokens_per_second
                lines.append(line)
                self.say(json.dumps(line))
                (arguments.out / "context.json").write_text(json.dumps(lines, indent=1))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--context", type=int, default=262_144)
    parser.add_argument("--near", type=numbers, default=[0, 40_960, 4096])
    parser.add_argument("--depths", type=numbers, default=[0, 65_536, 250_000])
    parser.add_argument("--widths", type=numbers, default=[1, 4])
    parser.add_argument("--prompts", type=numbers, default=[4096])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=32)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
