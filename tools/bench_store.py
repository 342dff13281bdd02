"""Speed when a file does not fit in the memory allowed: what the disk gives, and what is made of it.

    python tools/bench_store.py model.gguf --ram 3G [--device cuda --vram 6G] [--prompt 512] [--steps 60] [--disk]

Tokens are random: the n-gram table is read everywhere, and experts are asked for as the router's weights say. Beside
the speeds stands what the plan predicts for flat and for skewed routing, by `--rates` (else the stored probe, or a
brief one), with the disk's rate of now where `--disk` asks for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako import _cpu
from jubako.arch.weights import load_network
from jubako.engine.model import Model, load
from jubako.files import open_model
from jubako.place.census import take_census
from jubako.place.fit import make_plan
from jubako.place.machine import Machine
from jubako.place.plan import Wish
from jubako.place.probe import this_machine
from jubako.place.sizes import parse_size
from jubako.place.store import ExpertStore

MOST = 3 << 30  # bytes read for the disk's rate
WARM = 30  # steps before those that count


def disk(path: Path) -> dict[str, float]:
    """GB/s of direct reads by threads at work, and microseconds for the 16 rows of a token."""
    size = path.stat().st_size
    wanted, found = min(MOST, size // 2), {}
    for threads in (4, 8, 16, 32):
        reader = _cpu.Reader([str(path)], threads)
        start = time.perf_counter()
        reader.read(0, size // 4, wanted)
        found[f"GB/s with {threads} threads"] = wanted / (time.perf_counter() - start) / 1e9
    rows = size // 2 // 170
    table, ids = _cpu.RowTable(_cpu.Reader([str(path)], 16), 0, size // 4, 170, rows), np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(100):
        table.begin(ids.integers(0, rows, 16)).take(170)
    found["µs for 16 rows"] = (time.perf_counter() - start) * 1e4
    return found


def store_of(model: Model) -> ExpertStore | None:
    """The store of a model's experts, on whichever device, if it has one."""
    executor: Any = model.executor
    if hasattr(executor, "store"):
        return executor.store  # type: ignore[no-any-return]
    boxes = getattr(executor.ops, "boxes", None)
    kept = () if boxes is None else boxes.host.keep
    return next((part for part in kept if isinstance(part, ExpertStore)), None)


def peaks() -> dict[str, float]:
    """GB of main memory at most: of this process, and of its control group with the page cache, where one says so."""
    status = Path("/proc/self/status").read_text().splitlines()
    found = {"peak GB": next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")) / 1e9}
    own = Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":")[-1]
    for folder in (f"/sys/fs/cgroup{own}", "/sys/fs/cgroup"):
        file = Path(folder) / "memory.peak"
        if file.exists():
            return found | {"memory.peak GB": int(file.read_text()) / 1e9}
    return found


def on_card(model: Model) -> dict[str, float]:
    """Slots a layer, video memory that tensors took at most, and that the card has in use; nothing without a GPU."""
    boxes = getattr(getattr(model.executor, "ops", None), "boxes", None)
    if boxes is None:
        return {}
    import torch

    slots = sum(pool.slots for pool in boxes.residents.pools.values()) / len(boxes.layers)
    free, total = torch.cuda.mem_get_info()
    return {
        "slots a layer": slots, "hits": hits(model), "card in use, GB": (total - free) / 1e9,
        "peak of video memory, GB": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def hits(model: Model) -> float:
    """Uses of experts by steps so far whose expert has a slot now."""
    boxes = model.executor.ops.boxes  # type: ignore[attr-defined]
    counts = boxes.counts.cpu().numpy().astype(np.int64)
    return float(counts[boxes.residents.where >= 0].sum() / max(counts.sum(), 1))


def planned(arguments: argparse.Namespace, wish: Wish, rate: float) -> dict[str, float]:
    """What the plan predicts, and the limit of the machine's rates, tokens/s. rate: of the disk, 0 as stored."""
    census = take_census(load_network(open_model(arguments.file)))
    if arguments.rates is not None:
        machine = Machine.from_json(json.loads(arguments.rates.read_text()))
    else:
        machine = this_machine(census.kinds, arguments.file)
    if rate:
        machine = replace(machine, disk=replace(machine.disk, sequential=rate))
    plan = make_plan(census, machine, wish)
    if plan.speed is None:
        return {}
    found: dict[str, float] = {}
    for name, step in (("flat", plan.speed.flat), ("skewed", plan.speed.skewed)):
        found |= {f"plan, {name}": step.rate, f"limit, {name}": float(plan.speed.limits[name])}
    return found | {f"plan, prompt of {n}": estimate.rate for n, estimate in plan.speed.prompts.items()}


def measure(arguments: argparse.Namespace, rate: float = 0.0) -> dict[str, Any]:
    """Load, read a prompt, decode. rate: bytes/s of the disk."""
    sizes = {
        name: None if text is None else parse_size(text)
        for name, text in (("ram", arguments.ram), ("vram", arguments.vram))
    }
    context = arguments.prompt + arguments.steps + WARM + 16
    wish = Wish(context, sizes["vram"], sizes["ram"], gpus=() if arguments.device == "cpu" else None)
    promised = planned(arguments, wish, rate)
    start = time.perf_counter()
    model = load(arguments.file, arguments.device, context=context, sequences=1, **sizes)  # type: ignore[arg-type]
    loaded, store = time.perf_counter() - start, store_of(model)
    session, counts = model.session(), (0, 0, 0, 0)
    ids = np.random.default_rng(0).integers(0, model.config.vocabulary, context).tolist()
    start = time.perf_counter()
    session.prefill(ids[: arguments.prompt])
    read = time.perf_counter() - start
    rest = ids[arguments.prompt :]
    for id in rest[:WARM]:
        session.decode(id)
    if store is not None:
        counts = store.native.counts
    start = time.perf_counter()
    for id in rest[WARM : WARM + arguments.steps]:
        session.decode(id)
    decoded = (time.perf_counter() - start) / arguments.steps
    result: dict[str, Any] = {
        "load s": loaded, "prompt tok/s": arguments.prompt / read, "decode tok/s": 1 / decoded, **peaks(),
        **on_card(model), **promised,
    }  # fmt: skip
    if store is not None:
        asked, missed, expected, in_vain = (b - a for a, b in zip(counts, store.native.counts, strict=True))
        each = store.bytes_of_all / store.layers / store.experts
        fetched = (missed + expected) * each / arguments.steps
        result |= {
            "experts in memory": 1.0 if store.whole else store.frames / store.layers / store.experts,
            "found there": 1 - missed / max(asked, 1), "guessed": expected / arguments.steps,
            "guessed in vain": in_vain / arguments.steps, "MB a token": fetched / 1e6, "GB/s": fetched / decoded / 1e9,
        }  # fmt: skip
        if rate:  # of the time a token took, what the disk would have needed for what was used of it
            result["of what the disk allows"] = (fetched - in_vain * each / arguments.steps) / rate / decoded
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ram")
    parser.add_argument("--vram")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--rates", type=Path, help="what `jubako probe` kept of the machine")
    arguments = parser.parse_args()
    rate = 0.0
    if arguments.disk:
        found = disk(arguments.file)
        print(json.dumps(found), flush=True)
        rate = 1e9 * max(value for name, value in found.items() if name.startswith("GB/s"))
    print(json.dumps(measure(arguments, rate)), flush=True)


if __name__ == "__main__":
    main()
