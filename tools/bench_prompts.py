"""Prompt speed when most experts lie in main memory: a random full-size network on one GPU, few experts in slots.

    python tools/bench_prompts.py --out results [--slots 480] [--prompts 8192,16384,65536] [--chunk 16384]
    python tools/bench_prompts.py --out results --vram 12G

Prompts are cut into chunks of at most `--chunk` tokens. copied false: nothing is copied, for what the link costs. With
`--vram` slots, context and chunks are those of the plan for a card of that size, as `jubako --vram` would lay them out,
and torch may not take more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.arch.network import Network
from jubako.engine.gpu.device import free_bytes, open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.synth_host import synthetic_host
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.boxes import Boxes
from jubako.ops.gpu.stream import ExpertStream
from jubako.place.census import take_census
from jubako.place.fit import make_plan
from jubako.place.machine import Machine
from jubako.place.plan import Wish
from jubako.place.resident import routed
from jubako.place.sizes import parse_size

RATES = Path(__file__).parents[1] / "tests/data/machines/h200.json"
RAM = 64 * 10**9  # bytes of main memory of the planned machine


@dataclass(frozen=True)
class Measured:
    """A prompt read from an empty context. peak: bytes of tensors at most; used: of the card afterwards, with what
    torch keeps and the driver's own; link: bytes/s of experts copied."""

    tokens: int
    chunk: int
    copied: bool
    seconds: float
    tokens_per_second: float
    peak: int
    used: int
    link: float


@contextmanager
def nothing_copied(stream: ExpertStream) -> Iterator[None]:
    """Inside, turns come at once, with whatever lay in their places."""
    kept = stream._copy, stream._repack
    stream._copy = stream._repack = lambda *turn: None  # type: ignore[method-assign, assignment, misc]
    try:
        yield
    finally:
        stream._copy, stream._repack = kept  # type: ignore[method-assign]


class Bench:
    """One executor for all lengths."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.started = arguments, time.perf_counter()
        self.device, types = open_gpu(), BlockTypes.parse(arguments.types)
        context = max(arguments.prompts) + 64
        self.config = network_config(
            layers=arguments.layers, experts=arguments.experts, context=context, ngram_rows=100_000
        )
        network, source = synthetic_network(self.config, self.device, types)
        if arguments.vram is not None:
            self.plan(network)
        host = synthetic_host(self.config, self.device, types, arguments.distinct)
        layers = [layer.experts for layer in network.layers]
        self.boxes = Boxes(layers, host, arguments.slots, self.config.experts_used, self.device)
        self.executor = GpuExecutor(
            network, self.device, context=context, tokens=context, sequences=1, source=source, boxes=self.boxes
        )
        absent = (self.boxes.residents.where < 0).sum(axis=1).tolist()
        self.absent_bytes = sum(
            count * sum(tensor.nbytes // tensor.shape[0] for tensor in routed(experts))
            for count, experts in zip(absent, layers, strict=True)
        )
        self.results: list[Measured] = []
        self.say(f"ready; a pass brings {self.absent_bytes / 1e9:.1f} GB of experts")

    def plan(self, network: Network) -> None:
        """Take slots and chunks from the plan, and hold torch to it."""
        vram = parse_size(self.arguments.vram)
        free_bytes(self.device, vram)
        machine = Machine.from_json(json.loads(RATES.read_text()))
        plan = make_plan(take_census(network), machine, Wish(self.config.context_length, vram, RAM))
        if plan.short:
            raise SystemExit(plan.short)
        self.arguments.slots, self.arguments.chunk = sum(plan.slots), plan.chunk
        self.say(f"planned: {self.arguments.slots} slots, chunks of {plan.chunk}")

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def read(self, tokens: int, copied: bool) -> None:
        """Read a prompt twice; the second counts."""
        ids = np.random.default_rng(0).integers(0, self.config.vocabulary, tokens).tolist()
        self.executor.chunk = self.executor.piece = chunk = min(self.arguments.chunk, tokens)
        for _ in range(2):
            state = self.executor.new_state(self.executor.context)
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            self.executor.forward(ids, state, last_only=True)
            seconds = time.perf_counter() - start
            state.close()
        link = -(-tokens // chunk) * self.absent_bytes / seconds if copied else 0.0
        peak, (free, total) = torch.cuda.max_memory_allocated(self.device), torch.cuda.mem_get_info(self.device)
        self.results.append(Measured(tokens, chunk, copied, seconds, tokens / seconds, peak, total - free, link))
        self.say(json.dumps(asdict(self.results[-1])))

    def run(self) -> None:
        """All lengths, then those of one chunk without copying."""
        for tokens in self.arguments.prompts:
            self.read(tokens, True)
        with nothing_copied(self.boxes.stream):
            for tokens in self.arguments.prompts:
                if tokens <= self.arguments.chunk:
                    self.read(tokens, False)
        self.arguments.out.mkdir(parents=True, exist_ok=True)
        (self.arguments.out / "prompts.json").write_text(json.dumps([asdict(line) for line in self.results], indent=1))
        self.boxes.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=480)
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=[8192, 16384, 65536])
    parser.add_argument("--chunk", type=int, default=16384)
    parser.add_argument("--vram", help="of a card, like 12G")
    parser.add_argument("--distinct", type=int, default=8, help="layers whose experts differ; the others share theirs")
    parser.add_argument("--types", default="")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=512)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
