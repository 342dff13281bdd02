"""Two cards against one on a random network of full size: steps, drafts, prompts and bits, by layers and by halves.

    python tools/bench_cards.py --out results                                                # docs/performance/cards.md
    python tools/bench_cards.py --out results --ways layers --types gate_up=Q2_K --vram 32G --context 262144

Results are printed, and written to JSON, as they come; a measurement that fails leaves its error there.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.engine.executor import DraftWish
from jubako.engine.gpu.cards_choice import exchange_seconds
from jubako.engine.gpu.device import free_bytes, make_ready
from jubako.engine.gpu.executor import LEAST_CHUNK, PIECES, GpuExecutor
from jubako.engine.gpu.several import SECOND, runs_of, tight
from jubako.errors import JubakoError, MachineError
from jubako.measure.bench_gpu import fill_random
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.columns import Part, step_table
from jubako.ops.gpu.sequence import GpuState
from jubako.place.sizes import parse_size

REPEATS, STEPS = 7, 16  # runs of a step's time, and steps of a run
WAYS = ("one", "layers", "halves")


class Bench:
    """Measurements of one network, laid out in several ways one after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.started = time.perf_counter()
        self.found: dict[str, Any] = {}
        self.bits: dict[str, np.ndarray] = {}
        self.piece: int | None = None
        self.devices = [torch.device("cuda", index) for index in range(2)]
        config = network_config(layers=arguments.layers, ngram_rows=200_000, draft=True)
        types = BlockTypes.parse(arguments.types)
        made = [synthetic_network(config, device, types, draft_head="Q4_0") for device in self.devices]
        self.network, self.sources = made[0][0], [source for _, source in made]
        self.rng = np.random.default_rng(1)

    def note(self, name: str, work: Callable[[], Any]) -> Any:
        """Print and keep what `work` gives, or its error."""
        try:
            result = work()
        except (JubakoError, RuntimeError, AssertionError) as error:
            result = f"failed: {type(error).__name__}: {str(error)[:300]}"
        self.found[name] = result
        print(f"[{time.perf_counter() - self.started:6.1f} s] {name}: {json.dumps(result)}", flush=True)
        (self.arguments.out / "cards.json").write_text(json.dumps(self.found, indent=1))
        return result

    def run(self, way: str) -> None:
        """Everything of one layout."""
        made = self.executor(way)
        for depth in self.arguments.depths:
            for width in (1, 4):
                self.note(f"{way}: step of {width} after {depth}, ms", partial(self.steps, made, width, depth))
        self.note(f"{way}: speculative step of 3 drafts, ms", partial(self.speculative, made))
        for tokens in self.arguments.prompts:
            self.note(f"{way}: prompt of {tokens}, tok/s", partial(self.prompt, made, tokens))
        self.note(f"{way}: GB taken", self.taken)
        if self.arguments.sequences < 2:  # bits are those of two states
            return
        first, again = self.logits(made), self.logits(made)
        self.note(f"{way}: what differs from run to run", partial(differing, first, again))
        self.bits = self.bits or first
        self.note(f"{way}: what differs from the first way", partial(differing, self.bits, first))

    def executor(self, way: str) -> GpuExecutor:
        """An executor laid out so, with its kernels ready."""
        rooms = [free_bytes(device, self.arguments.vram) for device in self.devices]
        context = self.arguments.context
        options = {"kv_bits": 8, "context": context, "tokens": context, "sequences": self.arguments.sequences}
        if way == "one":
            made = GpuExecutor(self.network, self.devices[0], source=self.sources[0], **options)
        else:
            held = {name: options[name] for name in ("kv_bits", "sequences", "tokens", "context")}
            runs = self.runs(rooms, held) if way == "layers" else None
            self.note(f"{way}: layers of each", lambda: None if runs is None else [len(run) for run in runs])
            made = GpuExecutor(self.network, self.devices, runs=runs, source=self.sources, **options)
        if self.piece is not None:
            made.piece, made.chunk = self.piece, PIECES * self.piece
        make_ready(made, SECOND, widths=(1, 4))
        self.note(f"{way}: tokens of a prompt's piece", lambda: made.piece)
        return made

    def runs(self, rooms: list[int], held: dict[str, int]) -> list[range]:
        """The layers of each card as `several.cards_executor` has them: with short pieces of prompts if that helps."""
        try:
            return runs_of(self.network, self.devices, rooms, **held)
        except MachineError:
            self.piece = LEAST_CHUNK
            return runs_of(self.network, self.devices, tight(rooms), **held)

    def steps(self, made: GpuExecutor, width: int, depth: int) -> float:
        """Milliseconds of a step, replayed without the host: the median of some runs."""
        state = self._after(made, depth, width * STEPS * (REPEATS + 1))
        table = step_table([Part(self._ids(width), state.slot, depth, 0, 0)])
        times = []
        with made.ops.on_card():
            for _ in range(REPEATS + 1):
                self._wait()
                made.desk.write(table)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                start.record()
                for _ in range(STEPS):
                    made.steps.run(width)
                end.record()
                end.synchronize()
                times.append(float(start.elapsed_time(end)) / STEPS)
        state.close()
        return round(median(times[1:]), 3)

    def speculative(self, made: GpuExecutor) -> float:
        """Milliseconds of a speculative step that the host asks for."""
        state = made.new_state(made.context)
        made.step([(self._ids(1), state)])
        times = []
        for _ in range(16):
            started = time.perf_counter()
            made.speculate([DraftWish(self._ids(1)[0], state, 3)])
            times.append(1000 * (time.perf_counter() - started))
            state.keep(2)
        state.close()
        return round(median(times[3:]), 3)

    def prompt(self, made: GpuExecutor, tokens: int) -> int:
        """Tokens/s of a prompt from an empty context: the better of two."""
        ids, times = self._ids(tokens), []
        for _ in range(2):
            state = made.new_state(made.context)
            self._wait()
            started = time.perf_counter()
            for start in range(0, tokens, made.chunk):
                made.forward(ids[start : start + made.chunk], state, last_only=True)
            times.append(time.perf_counter() - started)
            state.close()
        return round(tokens / min(times))

    def logits(self, made: GpuExecutor) -> dict[str, np.ndarray]:
        """Of a prompt in pieces, a step, drafts and their verification, a resumed state."""
        ids = np.random.default_rng(2).integers(0, self.network.config.vocabulary, 700).tolist()
        state, other, found = made.new_state(made.context), made.new_state(made.context), {}
        piece, chunk = made.piece, made.chunk
        made.piece, made.chunk = 256, 256 * chunk // piece
        found["prompt"] = made.forward(ids[:600], state, last_only=True)
        made.piece, made.chunk = piece, chunk
        found["step"] = np.array(made.step([(ids[600:604], state)])[0])
        state.keep(2)
        guessed = made.speculate([DraftWish(ids[610], state, 3)])
        found["drafts"], found["verified"] = np.array(guessed.drafts), np.array(guessed.logits[0])
        state.keep(2)
        saved = made.save(state)
        made.resume(other, saved, ids[: saved.position])
        found["resumed"] = np.array(made.step([(ids[620:622], other)])[0])
        state.close()
        other.close()
        return found

    def _after(self, made: GpuExecutor, depth: int, more: int) -> GpuState:
        """A state that counts as having read `depth` tokens."""
        state = made.new_state(made.context)
        state.reserve(depth + more)
        state.position = state.draft_position = depth
        if depth:
            fill_random(made)
        return state

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self.rng.integers(0, self.network.config.vocabulary, count).tolist()
        return ids

    def _wait(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)

    def taken(self) -> list[float]:
        """GB of each card."""
        pairs = (torch.cuda.mem_get_info(device) for device in self.devices)
        return [round((total - free) / 1e9, 1) for free, total in pairs]

    def free(self) -> None:
        """Give back what the last layout took."""
        gc.collect()
        self._wait()
        torch.cuda.empty_cache()


def differing(want: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> dict[str, float]:
    """What is not the same, and by how much of the largest number; empty if all is."""
    return {
        name: float(np.abs(got[name] - row).max() / np.abs(row).max())
        for name, row in want.items()
        if not np.array_equal(got[name], row)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", default=",".join(WAYS), help="one after the other; the first is compared with")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--types", default="", help="block types, such as gate_up=Q2_K")
    parser.add_argument("--vram", type=parse_size, help="of each card, at most")
    parser.add_argument("--context", type=int, default=40_960)
    parser.add_argument(
        "--sequences", type=int, default=2, help="that have a state; bits are compared with two and more"
    )
    parser.add_argument("--depths", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    parser.add_argument("--prompts", type=lambda text: [int(part) for part in text.split(",")], default=[4096, 32_768])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments)
    for way in arguments.ways.split(","):
        bench.note(f"{way}: all", partial(bench.run, way))
        bench.free()
    bench.note("an exchange of one column, s", partial(exchange_seconds, bench.devices, bench.network.config.hidden))


if __name__ == "__main__":
    main()
