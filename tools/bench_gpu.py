"""The GPU engine's figures on a random full-size network, made in video memory: JSON and a table, written as they come.

    python tools/bench_gpu.py --out results --draft [--types dense=Q6_K,…] [--layers 48] [--only steps,prompts]

Several --types are measured one after the other, each into its own files, and compared at the end. Every line of a JSON
file stands even if a later measurement fails or is cut off. `--only compile` fills the cache of kernels.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.engine.gpu.device import open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.errors import JubakoError
from jubako.measure.bench_gpu import GpuBench
from jubako.measure.geometry import network_config
from jubako.measure.gpu_figures import GpuReport
from jubako.measure.gpu_report import markdown
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.tensor_plan import BlockTypes

DEPTHS = (0, 16 << 10, 64 << 10, 131 << 10, 250 << 10)
WIDTHS = (1, 4)
PROMPTS = (512, 4 << 10, 64 << 10, 250 << 10)
SEQUENCES = 8  # that run together
SAVED = 64 << 10  # tokens of a state that is kept and comes back
PARTS = "steps,prompts,drafts,answers,together,resume,disk"
STEPS = {"steps", "drafts", "answers", "together", "compile"}  # parts that need graphs


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


def run(arguments: argparse.Namespace, types: str) -> GpuReport:
    """Make the network, measure what was asked for."""
    name = arguments.name + "".join(f"-{part.replace('=', '-')}" for part in types.split(",") if part)
    journal = Journal(arguments.out, name)
    device, only = open_gpu(), set(arguments.only.split(","))
    config = network_config(
        layers=arguments.layers,
        experts=arguments.experts,
        vocab=arguments.vocab,
        ngram_rows=arguments.ngram_rows,
        draft=arguments.draft,
    )
    context = min(config.context_length, max(arguments.depths) + max(arguments.prompts) // 64 + 4096)
    context = max(context, max(arguments.prompts) + 64, SAVED + 4096 if only & {"resume", "disk"} else 0) // 64 * 64
    network, source = synthetic_network(
        config, device, BlockTypes.parse(types), draft_head=arguments.draft_head or None
    )
    journal.say("making the network")
    started = time.perf_counter()
    executor = GpuExecutor(
        network, device, kv_bits=arguments.kv_bits, context=context, tokens=2 * context, sequences=SEQUENCES + 1,
        source=source,
    )  # fmt: skip
    del source
    torch.cuda.synchronize()
    journal.say(f"made in {time.perf_counter() - started:.1f} s")
    if arguments.chunk:
        executor.chunk = arguments.chunk
    bench = GpuBench(network, executor, arguments.kv_bits, journal.say)
    report = bench.report(arguments.widths if only & STEPS else ())
    journal.write(report)

    def attempt(results: list[Any], work: Callable[[], Any]) -> None:
        """A failed measurement leaves a line, the next goes on."""
        try:
            results.append(work())
            shown = {key: value for key, value in asdict(results[-1]).items() if key not in ("kernels", "runs")}
            journal.say(json.dumps(shown))
        except (JubakoError, RuntimeError, AssertionError, ValueError, StopIteration) as error:
            journal.say(f"failed: {type(error).__name__}: {str(error)[:300]}")
        journal.write(report)

    def short_prompts(lengths: Sequence[int]) -> None:
        for tokens in lengths:
            attempt(report.prompts, partial(bench.prompt, tokens))
            report.prompt_kernels = bench.prompt_kernels(tokens)
            attempt(report.memory, partial(bench.memory, f"after a prompt of {tokens:,}"))

    def long_prompts(lengths: Sequence[int]) -> None:
        times = bench.long_prompt(lengths)
        for _ in lengths:
            attempt(report.prompts, partial(next, times))
        attempt(report.memory, partial(bench.memory, f"after a prompt of {max(lengths):,}"))

    ends = (arguments.depths[0], arguments.depths[-1])
    if "steps" in only:
        for depth in arguments.depths:
            for width in arguments.widths:
                profiled = arguments.profile and depth in ends and width in WIDTHS
                trace = arguments.out / "trace.json" if arguments.trace and depth == 0 and width == 1 else None
                repeats = arguments.repeats
                attempt(report.steps, partial(bench.steps, depth, width, 1, repeats, profiled=profiled, trace=trace))
    if "drafts" in only and arguments.draft:
        for depth in ends:
            attempt(report.speculative, partial(bench.speculative, depth, profiled=arguments.profile))
    if "answers" in only:
        for depth in ends:
            attempt(report.answers, partial(bench.answered, depth))
            attempt(report.answers, partial(bench.answered, depth, temperature=0.7, top_k=20))
    if "together" in only:
        for sequences in (1, SEQUENCES):
            attempt(report.steps, partial(bench.steps, 4096, sequences, sequences=sequences))
    if "resume" in only:
        attempt(report.resumed, partial(bench.resumed, SAVED))
    if "disk" in only:
        with tempfile.TemporaryDirectory(dir=arguments.disk) as folder:
            attempt(report.disk, partial(bench.from_disk, SAVED, Path(folder)))
    attempt(report.memory, partial(bench.memory, "after steps"))
    if "prompts" in only:
        short_prompts([n for n in arguments.prompts if n <= executor.chunk])
        if long := [n for n in arguments.prompts if n > executor.chunk]:
            long_prompts(long)
    print(markdown(report), flush=True)
    return report


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--types", action="append", help="block types as `jubako synth` takes them; may be repeated")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=248_320)
    parser.add_argument("--ngram-rows", type=int, default=2_000_000)
    parser.add_argument("--kv-bits", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--depths", type=numbers, default=list(DEPTHS))
    parser.add_argument("--widths", type=numbers, default=list(WIDTHS))
    parser.add_argument("--prompts", type=numbers, default=list(PROMPTS))
    parser.add_argument("--repeats", type=int, default=5, help="runs of up to 16 steps, of which the median counts")
    parser.add_argument("--only", default=PARTS, help=f"of {PARTS}; compile: none of them")
    parser.add_argument("--disk", type=Path, help="a folder on the disk that saved states are timed on")
    parser.add_argument("--profile", action="store_true", help="the kernels of the first and last depth")
    parser.add_argument("--trace", action="store_true", help="a file that a browser opens")
    parser.add_argument("--draft", action="store_true", help="with a draft layer: time speculative steps too")
    parser.add_argument("--draft-head", default="Q4_0", help="block type of its output matrix; empty: the trunk's")
    arguments = parser.parse_args()
    reports: dict[str, GpuReport] = {}
    for types in arguments.types or [""]:
        try:
            reports[types] = run(arguments, types)
        except (JubakoError, RuntimeError, ValueError) as error:
            print(f"{types}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if len(reports) > 1:
        print(compared(reports), flush=True)


def compared(reports: dict[str, GpuReport]) -> str:
    """A row for each type: ms of every step that was timed, and what of the copy bandwidth that is."""
    steps = next(iter(reports.values())).steps
    lines = ["| types | " + " | ".join(f"{step.width} at {step.depth:,}" for step in steps) + " |"]
    lines.append("|---|" + "---|" * len(steps))
    for types, report in reports.items():
        cells = (f"{step.milliseconds:.3f}, {step.share:.0%}" for step in report.steps)
        lines.append(f"| {types} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
