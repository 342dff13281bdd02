"""Prompt speed when most experts lie in main memory: a random full-size network on one GPU, few experts in slots.

    python tools/bench_prompts.py --out results --vram 12G,24G,48G [--prompts 8192,65536]
    python tools/bench_prompts.py --out results --slots 480 [--chunk 16384]

Prompts are cut into chunks of at most `--chunk` tokens. copied false: nothing is copied, for what the link costs. With
`--vram` slots, context and chunks are those of the plan for a card of that size and 64 GB of RAM, as `jubako --vram`
would lay them out, torch may not take more, and what the plan predicts stands beside.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.engine.gpu.device import free_bytes, open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.errors import MachineError
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.synth_host import synthetic_host
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.boxes import Boxes
from jubako.ops.gpu.stream import ExpertStream
from jubako.place.census import take_census
from jubako.place.fit import make_plan
from jubako.place.machine import Machine
from jubako.place.plan import Plan, Wish
from jubako.place.resident import routed
from jubako.place.sizes import parse_size

RATES = Path(__file__).parents[1] / "tests/data/machines/h200.json"
RAM = 64 * 10**9  # bytes of main memory of the planned machine


@dataclass(frozen=True)
class Measured:
    """A prompt read from an empty context.

    vram: bytes of the card that were allowed, 0 for all; peak: bytes of tensors at most; used: of the card afterwards,
    with what torch keeps and the driver's own; link: bytes/s of experts copied; predicted, limit: tokens/s by the plan,
    0 without one.
    """

    vram: int
    slots: int
    tokens: int
    chunk: int
    copied: bool
    seconds: float
    tokens_per_second: float
    peak: int
    used: int
    link: float
    predicted: float = 0.0
    limit: float = 0.0


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
    """One random network; card and slots are laid out anew for each size of a card."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.started = arguments, time.perf_counter()
        self.device, types = open_gpu(), BlockTypes.parse(arguments.types)
        self.context = max(arguments.prompts) + 64
        self.config = network_config(
            layers=arguments.layers, experts=arguments.experts, context=self.context, ngram_rows=100_000
        )
        self.network, self.source = synthetic_network(self.config, self.device, types)
        self.host = synthetic_host(self.config, self.device, types, arguments.distinct)
        self.results: list[Measured] = []
        self.say("experts in main memory")

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def plan(self, vram: int) -> Plan:
        """For a card of that size, which torch is held to."""
        free_bytes(self.device, vram)
        machine = Machine.from_json(json.loads(self.arguments.rates.read_text()))
        plan = make_plan(take_census(self.network), machine, Wish(self.context, vram, RAM))
        if plan.short:
            raise SystemExit(plan.short)
        return plan

    def card(self, vram: int) -> None:
        """All lengths on a card of that size; 0: with the slots asked for, and those of one chunk without copying."""
        arguments, plan = self.arguments, self.plan(vram) if vram else None
        slots = sum(plan.slots) if plan else arguments.slots
        chunk = plan.chunk if plan else arguments.chunk
        layers = [layer.experts for layer in self.network.layers]
        boxes = Boxes(layers, self.host, slots, self.config.experts_used, self.device)
        executor = GpuExecutor(
            self.network, self.device, context=self.context, tokens=self.context, sequences=1, source=self.source,
            boxes=boxes,
        )  # fmt: skip
        absent = (boxes.residents.where < 0).sum(axis=1).tolist()
        brought = sum(
            count * sum(tensor.nbytes // tensor.shape[0] for tensor in routed(experts))
            for count, experts in zip(absent, layers, strict=True)
        )
        self.say(f"{slots} slots, chunks of {chunk}; each brings {brought / 1e9:.1f} GB of experts")
        try:
            longest = min(chunk, max(arguments.prompts))
            self.read(executor, longest, longest)  # what the first one compiles and allocates does not count
            for tokens in arguments.prompts:
                seconds, peak, used = self.read(executor, tokens, min(chunk, tokens))
                line = Measured(
                    vram, slots, tokens, min(chunk, tokens), True, seconds, tokens / seconds, peak, used,
                    -(-tokens // chunk) * brought / seconds,
                )  # fmt: skip
                if plan and plan.speed and tokens in plan.speed.prompts:
                    line = replace(
                        line, predicted=plan.speed.prompts[tokens].rate, limit=float(plan.speed.limits[tokens])
                    )
                self.note(line)
            with nothing_copied(boxes.stream):
                for tokens in () if vram else (n for n in arguments.prompts if n <= chunk):
                    seconds, peak, used = self.read(executor, tokens, tokens)
                    self.note(Measured(0, slots, tokens, tokens, False, seconds, tokens / seconds, peak, used, 0.0))
        finally:
            boxes.close()

    def read(self, executor: GpuExecutor, tokens: int, chunk: int) -> tuple[float, int, int]:
        """Read a prompt: its seconds, bytes of tensors at most, and bytes of the card in use."""
        ids = np.random.default_rng(0).integers(0, self.config.vocabulary, tokens).tolist()
        executor.chunk = executor.piece = chunk
        state = executor.new_state(executor.context)
        torch.cuda.reset_peak_memory_stats(self.device)
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        executor.forward(ids, state, last_only=True)
        seconds = time.perf_counter() - start
        state.close()
        free, total = torch.cuda.mem_get_info(self.device)
        return seconds, torch.cuda.max_memory_allocated(self.device), total - free

    def note(self, line: Measured) -> None:
        """Show a result, and write all so far."""
        self.results.append(line)
        self.say(json.dumps(asdict(line)))
        self.arguments.out.mkdir(parents=True, exist_ok=True)
        (self.arguments.out / "prompts.json").write_text(json.dumps([asdict(line) for line in self.results], indent=1))

    def run(self) -> None:
        """Every card, the smallest first: what torch keeps of a smaller one is given back."""
        for vram in self.arguments.vram or [0]:
            try:
                self.card(vram)
            except MachineError as error:
                self.say(f"{vram / 1e9:.0f} GB: {error}")
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=480)
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=[8192, 65536])
    parser.add_argument("--chunk", type=int, default=16384)
    parser.add_argument("--vram", type=lambda text: sorted(map(parse_size, text.split(","))), help="cards: 12G,24G,48G")
    parser.add_argument("--rates", type=Path, default=RATES, help="what `jubako probe` kept of the machine")
    parser.add_argument("--distinct", type=int, default=8, help="layers whose experts differ; the others share theirs")
    parser.add_argument("--types", default="")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=512)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
