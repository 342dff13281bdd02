"""The GPU engine's figures on a random full-size network, made in video memory: JSON and a table, written as they come.

    python tools/bench_gpu.py --out results [--types dense=Q6_K,…] [--layers 48 --experts 512] [--only steps,prompts]

Every line of the JSON file stands even if a later measurement fails or is cut off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.engine.gpu.device import open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.measure.bench_gpu import GpuBench, GpuReport
from jubako.measure.geometry import network_config
from jubako.measure.gpu_report import markdown
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.tensor_plan import BlockTypes

DEPTHS = (0, 16 << 10, 64 << 10, 131 << 10, 250 << 10)
WIDTHS = (1, 4)
PROMPTS = (512, 4 << 10, 64 << 10, 250 << 10)


class Journal:
    """Results so far, on disk after each."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.json, self.table = folder / f"{name}.json", folder / f"{name}.md"
        self.started = time.perf_counter()

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def write(self, report: GpuReport) -> None:
        self.json.write_text(json.dumps(report.as_json(), indent=1))
        self.table.write_text(markdown(report))


def run(arguments: argparse.Namespace) -> None:
    """Make the network, measure what was asked for."""
    journal = Journal(arguments.out, arguments.name)
    device = open_gpu()
    config = network_config(
        layers=arguments.layers,
        experts=arguments.experts,
        vocab=arguments.vocab,
        ngram_rows=arguments.ngram_rows,
        draft=arguments.draft,
    )
    context = min(config.context_length, max(arguments.depths) + max(arguments.prompts) // 64 + 4096)
    context = max(context, max(arguments.prompts) + 64) // 64 * 64
    network, source = synthetic_network(config, device, BlockTypes.parse(arguments.types))
    journal.say("making the network")
    started = time.perf_counter()
    executor = GpuExecutor(network, device, kv_bits=arguments.kv_bits, context=context, sequences=2, source=source)
    torch.cuda.synchronize()
    journal.say(f"made in {time.perf_counter() - started:.1f} s")
    if arguments.chunk:
        executor.chunk = arguments.chunk
    bench = GpuBench(network, executor, arguments.kv_bits, journal.say)
    report = bench.report(arguments.widths if "steps" in arguments.only else ())
    journal.write(report)

    def attempt(results: list[Any], work: Callable[[], Any]) -> None:
        """A failed measurement leaves a line, the next goes on."""
        try:
            results.append(work())
            shown = {key: value for key, value in asdict(results[-1]).items() if key not in ("kernels", "runs")}
            journal.say(json.dumps(shown))
        except (RuntimeError, AssertionError, ValueError) as error:
            journal.say(f"failed: {type(error).__name__}: {str(error)[:300]}")
        journal.write(report)

    if "prompts" in arguments.only:
        for tokens in (n for n in arguments.prompts if n <= 8192):
            attempt(report.prompts, partial(bench.prompt, tokens))
            report.prompt_kernels = bench.prompt_kernels(tokens)
    if "steps" in arguments.only:
        for depth in arguments.depths:
            for width in arguments.widths:
                profiled = depth in (arguments.depths[0], arguments.depths[-1])
                trace = arguments.out / "trace.json" if arguments.trace and depth == 0 and width == 1 else None
                attempt(report.steps, partial(bench.steps, depth, width, profiled=profiled, trace=trace))
    if "prompts" in arguments.only:
        for tokens in (n for n in arguments.prompts if n > 8192):
            attempt(report.prompts, partial(bench.prompt, tokens, repeats=1))
    if arguments.draft:
        for depth in (arguments.depths[0], arguments.depths[-1]):
            attempt(report.speculative, partial(bench.speculative, depth))
    print(markdown(report), flush=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--types", default="")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=248_320)
    parser.add_argument("--ngram-rows", type=int, default=2_000_000)
    parser.add_argument("--kv-bits", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--depths", type=numbers, default=list(DEPTHS))
    parser.add_argument("--widths", type=numbers, default=list(WIDTHS))
    parser.add_argument("--prompts", type=numbers, default=list(PROMPTS))
    parser.add_argument("--only", default="steps,prompts")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--draft", action="store_true", help="with a draft layer: time speculative steps too")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
