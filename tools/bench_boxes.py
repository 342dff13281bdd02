"""Decode speed when not all experts have slots: a random full-size network, experts in main memory, slots as asked for.

    python tools/bench_boxes.py --out results [--slots 1370,5840,14750] [--routing flat,skewed] [--steps 40]

Every number of slots is measured with flat and with skewed routing (measure/synth.py), in the order asked for. With
skewed routing slots belong to what the engine's own counts of `--learn` steps call hot. Beside each stands what the
plan's formulas predict by the rates of `--rates`, and the limit, each part as fast as alone. A line for each stands in
the JSON file even if a later one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako import _cpu
from jubako.engine.gpu.device import open_gpu
from jubako.engine.gpu.executor import GpuExecutor
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.measure.synth_host import synthetic_host
from jubako.measure.tensor_plan import BlockTypes, Routing
from jubako.ops.gpu.boxes import EARLY, NAMED, Boxes
from jubako.ops.gpu.matrix import matrix
from jubako.ops.gpu.residents import spread
from jubako.place.census import Census, take_census
from jubako.place.factors import APART
from jubako.place.machine import CardRates, Machine
from jubako.place.predict import Holding, card_step
from jubako.place.resident import expert_layers
from jubako.place.routing import Popularity, flat, skewed

RATES = Path(__file__).parents[1] / "tests/data/machines/h200.json"
CONTEXT = 4096
SETTLING = 96  # steps until the link's share is what it stays


@dataclass(frozen=True)
class Measured:
    """Steps of `width` columns asked for by the host.

    hits: uses whose expert had a slot; early: experts of a layer fetched before it asked; wanted: the part of them that
    it did ask for; share: of the others that were absent, fetched over the link; requests: layers that asked the CPU's
    threads; experts, request: of a request, and its µs; named: experts of a layer that the threads called into their
    caches; waiting: µs that the GPU waited for one; video: bytes of the
    card in use with so many slots; predicted, limit: tokens/s by the plan's formulas; expected: the hits they reckon
    with.
    """

    routing: str
    slots: int
    width: int
    milliseconds: float
    tokens_per_second: float
    hits: float
    early: float
    wanted: float
    share: float
    requests: float
    experts: float
    request: float
    named: float
    waiting: float
    video: int
    predicted: float
    limit: float
    expected: float


class Bench:
    """One executor with the most slots wanted; fewer are measured by leaving the rest empty."""

    draft = False  # whether the network has a draft layer

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.started = arguments, time.perf_counter()
        self.device, self.types = open_gpu(), BlockTypes.parse(arguments.types)
        self.config = network_config(
            layers=arguments.layers, experts=arguments.experts, context=CONTEXT, ngram_rows=100_000, draft=self.draft
        )
        _cpu.set_threads(arguments.threads)
        host = synthetic_host(self.config, self.device, self.types, arguments.distinct)
        self.say(f"experts of {arguments.distinct} layers in main memory")
        network, source = synthetic_network(self.config, self.device, self.types)
        layers = expert_layers(network)
        self.census = take_census(network)
        self.machine = Machine.from_json(json.loads(arguments.rates.read_text()))
        self.boxes = Boxes(layers, host, max(arguments.slots), self.config.experts_used, self.device)
        self.boxes.foresee(arguments.early, arguments.named)
        self.executor = GpuExecutor(network, self.device, context=CONTEXT, source=source, boxes=self.boxes)
        self.state = self.executor.new_state(CONTEXT)
        self.rng = np.random.default_rng(0)
        self.results: list[Measured] = []
        self.step(2)
        balance = self.executor.swaps[0].balance
        self.say(f"network; an expert over the link {1e6 * balance.fetching:.1f}, a tick {1e9 * balance.tick:.0f} ns")

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def step(self, count: int, width: int = 1) -> None:
        """Steps of random tokens."""
        for _ in range(count):
            if self.state.position + 2 * width > self.state.context:
                self.state.close()
                self.state = self.executor.new_state(CONTEXT)
            self.executor.step([(self.rng.integers(0, self.config.vocabulary, width).tolist(), self.state)])

    def settle(self, slots: int, order: np.ndarray) -> None:
        """Give that many slots to the first of `order` [n, 2] (layer, expert). What lies in them is left as it is."""
        residents = self.boxes.residents
        [pool] = residents.pools.values()
        torch.cuda.synchronize()
        residents.where[:], pool.holders[:] = -1, -1
        chosen = order[:slots]
        pool.holders[:slots] = chosen
        residents.where[chosen[:, 0], chosen[:, 1]] = np.arange(slots)
        residents.table.copy_(torch.from_numpy(residents.where))

    def route(self, routing: Routing) -> np.ndarray:
        """Go over to routers of that kind; all experts in the order in which they get slots: of skewed ones that of the
        heat that they give."""
        network, source = synthetic_network(self.config, self.device, self.types, routing)
        for own, new in zip(self.executor.ops.weights.layers, network.layers, strict=True):
            routers = (new.experts.router, new.experts.shared_router)
            own.experts.router[0].data.copy_(matrix(routers, self.device, source).data)
        if routing == "flat":
            return spread(len(self.boxes.layers), self.config.experts)
        heat = self.executor.swaps[0].heat
        self.executor.desk.meanwhile = None
        heat.read(self.boxes.counts.cpu().numpy())
        heat.values[:] = 0
        self.step(self.arguments.learn)
        heat.read(self.boxes.counts.cpu().numpy())
        self.executor.desk.meanwhile = self.executor.swaps[0].between
        return heat.order()

    def measure(self, routing: Routing, slots: int, width: int = 1) -> None:
        """Time steps once the share has settled."""
        steps, layers, balance = self.arguments.steps, self.config.layers, self.executor.swaps[0].balance
        balance.set(0.3)
        self.step(SETTLING, width)
        before, used = self._work(), self._uses()
        start = time.perf_counter()
        self.step(steps, width)
        each = (time.perf_counter() - start) / steps
        requests, experts, seconds, named, early, wanted = self._work() - before
        used = self._uses() - used
        free, total = torch.cuda.mem_get_info(self.device)
        depth = max(self.state.position - steps * width // 2, 0)
        predicted, limit, expected = self.predict(routing, width, depth)
        self.results.append(
            Measured(
                routing=routing,
                slots=slots,
                width=width,
                milliseconds=1000 * each,
                tokens_per_second=width / each,
                hits=1 - used[self.boxes.residents.where < 0].sum() / used.sum(),
                early=early / steps / layers,
                wanted=wanted / max(early, 1),
                share=balance.share,
                requests=requests / steps / layers,
                experts=experts / max(requests, 1),
                request=1e6 * seconds / max(requests, 1),
                named=named / steps / layers,
                waiting=1e6 * balance.waiting,
                video=total - free - (max(self.arguments.slots) - slots) * next(iter(self.boxes.residents.pools)).bytes,
                predicted=predicted,
                limit=limit,
                expected=expected,
            )
        )
        self.say(json.dumps(asdict(self.results[-1])))
        self.arguments.out.mkdir(parents=True, exist_ok=True)
        (self.arguments.out / "boxes.json").write_text(json.dumps([asdict(line) for line in self.results], indent=1))

    def predict(self, routing: Routing, width: int, depth: int) -> tuple[float, float, float]:
        """Tokens/s of a step after `depth` tokens by the plan's formulas, the limit if nothing were lost, and the hits
        reckoned with."""
        lay = *self.lay(routing), depth, width
        predicted = card_step(*lay)
        return predicted.rate, card_step(*lay, APART).rate, predicted.hit_rate

    def lay(self, routing: Routing) -> tuple[Census, Machine, CardRates, Holding, Popularity]:
        """What the plan's formulas are told of network, machine and places."""
        held = (self.boxes.residents.where >= 0).sum(axis=1).tolist()
        holding = Holding(held, [self.config.experts] * len(held), self.arguments.threads + 1)
        popularity = (flat if routing == "flat" else skewed)(self.config.experts, self.config.experts_used)
        return self.census, self.machine, self.machine.cards[0], holding, popularity

    def _work(self) -> np.ndarray:
        """So far: requests, the threads' experts and seconds, experts named to them, those fetched early, and those of
        these asked for."""
        threads, early = self.boxes.threads, self.boxes.mailbox.state[4:6].tolist()
        return np.array([threads.requests, threads.experts, threads.seconds, threads.named, *early])

    def _uses(self) -> np.ndarray:
        """Uses of each expert by steps so far: [layers, experts]."""
        return self.boxes.counts.cpu().numpy().astype(np.int64)

    def run(self) -> None:
        """Everything, in the order asked for."""
        for routing in self.arguments.routing:
            order = self.route(routing)
            for slots in self.arguments.slots:
                self.settle(slots, order)
                self.measure(routing, slots)
                for width in self.arguments.widths if routing == "skewed" else ():
                    self.measure(routing, slots, width)
        self.say(f"{self.executor.swaps[0].swapped} experts changed places meanwhile")
        print(table(self.results), flush=True)
        self.boxes.close()


def table(results: list[Measured]) -> str:
    """As Markdown."""
    lines = [
        "| VRAM, GB | slots | routing | columns | hits | early, chosen | ms | tok/s | plan | limit | link's part |"
    ]
    lines.append("|" + "---|" * 11)
    for r in results:
        lines.append(
            f"| {r.video / 1e9:.1f} | {r.slots:,} | {r.routing} | {r.width} | {r.hits:.0%} | "
            f"{r.early:.1f}, {r.wanted:.0%} | {r.milliseconds:.2f} | {r.tokens_per_second:.1f} | {r.predicted:.1f} | "
            f"{r.limit:.0f} | {r.share:.0%} |"
        )
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = options(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    Bench(parser.parse_args()).run()


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """With what a bench over boxes can be told."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slots", type=numbers, default=[1370, 5840, 14750])
    parser.add_argument("--routing", type=lambda text: text.split(","), default=["flat", "skewed"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learn", type=int, default=200)
    parser.add_argument("--widths", type=numbers, default=[4], help="of further steps with skewed routing")
    parser.add_argument("--threads", type=int, default=max(_cpu.default_threads() - 1, 1))
    parser.add_argument("--early", type=int, default=EARLY, help="experts of a layer fetched before it asks, at most")
    parser.add_argument("--named", type=int, default=NAMED, help="others that the threads are told of, at most")
    parser.add_argument("--distinct", type=int, default=12)
    parser.add_argument("--types", default="")
    parser.add_argument("--rates", type=Path, default=RATES, help="what `jubako probe` kept of the machine")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=512)
    return parser


if __name__ == "__main__":
    main()
