"""Decoding with drafts when not all experts have slots: how deep the engine drafts, and what that gives.

    python tools/bench_boxed_drafts.py --out results [--slots 1370,5840,14750] [--kept 0.6] [--steps 60]

The random network of tools/bench_boxes.py with its draft layer, whose experts share the slots. Its guesses are worth
nothing, so which are kept is drawn: each with the probability `--kept`, given that those before it were. Proposer and
depth of each step are chosen as for an answer (engine/depth.py), from what steps took so far.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench_boxes import CONTEXT, Bench, options

from jubako.engine.depth import Acceptance, Costs, best_plan
from jubako.engine.draft import LAYER_MOST
from jubako.engine.executor import DraftWish
from jubako.measure.tensor_plan import Routing
from jubako.place.predict import card_step, draft_pass


@dataclass(frozen=True)
class Drafted:
    """Steps as the engine chooses them. depths: how many steps had so many drafts; tokens: of a step; plain: tokens/s
    of steps without drafts in the same process; video: bytes of the card in use; predicted: milliseconds of such steps
    by the plan's formulas."""

    routing: str
    slots: int
    kept: float
    depths: dict[int, int]
    tokens: float
    milliseconds: float
    tokens_per_second: float
    plain: float
    video: int
    predicted: float


class DraftBench(Bench):
    """A bench whose steps are those of an answer with drafts."""

    draft = True

    def answer(self, routing: Routing, slots: int) -> None:
        """Time steps with the depth that pays, once what they cost is known."""
        arguments = self.arguments
        costs, acceptance = Costs(), Acceptance(LAYER_MOST)
        self.executor.swaps[0].balance.set(0.4)
        for depth in range(LAYER_MOST + 1):  # graphs are captured on the way; what that takes must not count
            self.one(depth)
        depths: Counter[int] = Counter()
        tokens, started = 0, 0.0
        for step in range(arguments.warm + arguments.steps):
            if step == arguments.warm:
                depths, tokens, started = Counter(), 0, time.perf_counter()
            depth = best_plan(costs, acceptance, LAYER_MOST, 0, 0, 1).depth
            whole, drafting, kept = self.one(depth)
            costs.learn(1 + depth, whole - drafting, depth, drafting)
            acceptance.learn_layer(depth, kept)
            depths[depth] += 1
            tokens += 1 + kept
        each = (time.perf_counter() - started) / arguments.steps
        start = time.perf_counter()
        for _ in range(arguments.steps // 2):
            self.one(0)
        plain = (time.perf_counter() - start) / (arguments.steps // 2)
        free, total = torch.cuda.mem_get_info(self.device)
        unused = (max(arguments.slots) - slots) * next(iter(self.boxes.residents.pools)).bytes
        line = Drafted(
            routing, slots, arguments.kept, dict(sorted(depths.items())), tokens / arguments.steps, 1000 * each,
            tokens / arguments.steps / each, 1 / plain, total - free - unused, self.foretold(routing, depths),
        )  # fmt: skip
        self.drafted.append(line)
        self.say(json.dumps(asdict(line)))
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "boxed_drafts.json").write_text(json.dumps([asdict(line) for line in self.drafted], indent=1))

    def foretold(self, routing: Routing, depths: Counter[int]) -> float:
        """Milliseconds of a step by the plan's formulas, on average over the depths of steps."""
        lay, seconds = self.lay(routing), 0.0
        for depth, count in depths.items():
            seconds += count * (card_step(*lay, CONTEXT // 4, 1 + depth).seconds + depth * draft_pass(*lay))
        return 1000 * seconds / sum(depths.values())

    def one(self, depth: int) -> tuple[float, float, int]:
        """A step with so many drafts: its seconds, those of its drafts, and how many are kept."""
        if self.state.position + 2 * (1 + LAYER_MOST) > self.state.context:
            self.state.close()
            self.state = self.executor.new_state(CONTEXT)
        start, drafting, kept = time.perf_counter(), 0.0, 0
        token = int(self.rng.integers(0, self.config.vocabulary))
        if depth:
            drafting = self.executor.speculate([DraftWish(token, self.state, depth)]).seconds
            while kept < depth and self.rng.random() < self.arguments.kept:
                kept += 1
        else:
            self.executor.step([([token], self.state)])
        self.state.keep(1 + kept)
        return time.perf_counter() - start, drafting, kept

    def run(self) -> None:
        """Everything, in the order asked for."""
        self.drafted: list[Drafted] = []
        for routing in self.arguments.routing:
            order = self.route(routing)
            for slots in self.arguments.slots:
                self.settle(slots, order)
                self.answer(routing, slots)
        self.boxes.close()


def main() -> None:
    parser = options(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--kept", type=float, default=0.6)
    parser.add_argument("--warm", type=int, default=60)
    DraftBench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
