"""Times the GPU's weight-reading kernels at the real shapes: in a captured graph, over more weights than the L2 holds.

    python tools/bench_gpu_kernels.py OUT_DIRECTORY [--sweep] [--types] [--only NAME …]

Prints a line per kernel and keeps it in OUT_DIRECTORY/kernels.json: µs, bytes of weights as laid out, TB/s.
--sweep tries several cuts of each product, --types every block type. Worker processes compile first, on all cores.
"""
# mypy: disable-error-code="misc,call-arg,arg-type"

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import jubako.ops.gpu.launch
from jubako.ops.gpu import linear as products
from jubako.ops.gpu.activation import Quantised, quantize
from jubako.ops.gpu.cuts import Shape
from jubako.ops.gpu.expert_step import Cut, down, gate_up, usual_cut
from jubako.ops.gpu.experts import Experts, Routed, experts
from jubako.ops.gpu.hyper import HyperMix, experts_mix, hyper_mix, linear_mix
from jubako.ops.gpu.hyper_gates import tile_mix
from jubako.ops.gpu.hyper_long import Cut as HyperCut
from jubako.ops.gpu.hyper_long import long_parts
from jubako.ops.gpu.linear import launch, linear
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.planar import LAYOUTS
from jubako.ops.gpu.route import argmax, route_experts
from jubako.ops.gpu.slots import Slots, SlotShape
from jubako.ops.gpu.tiles import PAIR, TILES, UNIT, fits
from jubako.quant import BY_NAME

assert jubako.ops.gpu.launch
HIDDEN, STREAMS, RANK, SIZE, CHOSEN = 2560, 4, 320, 640, 10
ROTATION = 300 << 20  # bytes of weights that a measurement goes round
Launch = Callable[[], Any]


def device() -> torch.device:
    return torch.device("cuda")


def planes(name: str, rows: int, cols: int, count: int = 1) -> torch.Tensor:
    """Random planes [count, bytes] whose scales are ordinary numbers."""
    layout = LAYOUTS[name]
    size = layout.matrix_bytes(rows, cols)
    if layout.number:
        numbers = torch.randn(count, size // layout.number, device=device()) * 0.02
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        return numbers.to(kind).view(torch.uint8).view(count, size)
    data = torch.randint(0, 256, (count, size), dtype=torch.uint8, device=device())
    used = layout.row_bytes(cols) * rows
    scales = rows * -(-(cols // 32) // layout.every) * layout.d
    if layout.d in (2, 4):
        halves = (torch.randn(count, scales // 2, device=device()) * 0.01).half()
        data[:, used - scales : used] = halves.view(torch.uint8).view(count, scales)
    elif layout.d == 1:
        data[:, used - scales : used] = 120
    return data


def matrices(name: str, rows: int, cols: int, count: int, step: int | None = UNIT) -> list[Matrix]:
    """As the engine lays them out; tiles have their scales where planes of Q8_0 have them. step: see `matrix`."""
    data = planes(name, rows, cols, count)
    tiled = step is not None and fits(BY_NAME[name], cols, step) and rows % 16 == 0
    return [Matrix(data[i], TILES[name] if tiled else BY_NAME[name], rows, cols) for i in range(count)]


def rotation(size: int) -> int:
    return min(max(ROTATION // max(size, 1), 2), 96)


def graph_time(launches: list[Launch], replays: int = 15) -> float:
    """µs of one launch in the middle of many: median over replays of a graph of all of them."""
    for f in launches[:2]:
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for f in launches:
            f()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(1000 * sorted(times)[len(times) // 2] / len(launches))


def eager_time(launches: list[Launch]) -> float:
    """µs of one launch, the median of several rounds."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for f in launches:
            f()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e6 * sorted(times)[2] / len(launches)


@dataclass
class Case:
    """One measurement. make: gives the launches, each on other weights; size: bytes of weights a launch reads."""

    name: str
    size: int
    make: Callable[[], list[Launch]]


def columns(tokens: int, width: int, fine: bool = True) -> Quantised:
    return quantize(torch.randn(tokens, width, device=device()), fine)


def linear_case(label: str, parts: list[tuple[str, int]], cols: int, tokens: int, shape: Shape | None) -> Case:
    size = sum(rows * LAYOUTS[name].row_bytes(cols) for name, rows in parts)

    def make() -> list[Launch]:
        count = rotation(size)
        groups = list(zip(*(matrices(name, rows, cols, count) for name, rows in parts), strict=True))
        x, out = columns(tokens, cols), torch.empty(tokens, sum(rows for _, rows in parts), device=device())
        return [lambda group=group: launch(group, x, out, shape=shape) for group in groups]

    cut = f" rows {shape.rows} step {shape.step} groups {shape.groups} columns {shape.columns}" if shape else ""
    return Case(f"{label} T{tokens}{cut}", size, make)


def mixes(count: int) -> list[HyperMix]:
    wide = STREAMS * HIDDEN
    every = (
        matrices("Q8_0", RANK, wide, count),
        matrices("Q8_0", wide, RANK, count, PAIR),
        matrices("F32", 4, wide, count),
    )
    return [HyperMix(torch.ones(wide, device=device()), *group, STREAMS, 1e-6) for group in zip(*every, strict=True)]


def hyper_case(tokens: int, cut: HyperCut | None) -> Case:
    wide = STREAMS * HIDDEN
    size = RANK * wide // 32 * 34 * 2 + 4 * wide * 4

    def make() -> list[Launch]:
        streams = torch.randn(tokens, STREAMS, HIDDEN, device=device())
        return [lambda m=m: tile_mix(streams, m, True, cut=cut) for m in mixes(rotation(size))]

    label = f" warps {cut.warps} blocks {cut.blocks} tiles {cut.tiles}" if cut else ""
    return Case(f"hyper mix (2 launches) T{tokens}{label}", size, make)


def hyper_pieces(tokens: int) -> Iterator[Case]:
    """The first launch of a mix by itself; a mix behind the product whose output it adds."""
    wide = STREAMS * HIDDEN

    def streams() -> torch.Tensor:
        return torch.randn(tokens, STREAMS, HIDDEN, device=device())

    def long() -> list[Launch]:
        x = streams()
        return [lambda m=m: long_parts(x, m, None, None, min(tokens, 4), HyperCut()) for m in mixes(60)]

    def output() -> list[Launch]:
        x, y, inject = streams(), columns(tokens, 6144), torch.rand(tokens, STREAMS, device=device())
        pairs = zip(matrices("Q8_0", HIDDEN, 6144, 18), mixes(18), strict=True)
        return [lambda w=w, m=m: linear_mix(w, y, x, inject, m) for w, m in pairs]

    size = RANK * wide // 32 * 34 + 4 * wide * 4
    yield Case(f"hyper mix: long product T{tokens}", size, long)
    yield Case(f"output, then mix T{tokens}", HIDDEN * 6144 // 32 * 34 + size + RANK * wide // 32 * 34, output)


def layer_of(gate: str, low: str, count: int) -> Experts:
    def slots(up: str, down_name: str, number: int) -> Slots:
        shape = SlotShape(BY_NAME[up], BY_NAME[up], BY_NAME[down_name], SIZE, HIDDEN, SIZE)
        data = torch.empty(number, shape.bytes, dtype=torch.uint8, device=device())
        data[:, : shape.up_at] = planes(up, SIZE, HIDDEN, number)
        data[:, shape.up_at : shape.down_at] = planes(up, SIZE, HIDDEN, number)
        data[:, shape.down_at :] = planes(down_name, HIDDEN, SIZE, number)
        return Slots(shape, data, torch.arange(number, dtype=torch.int32, device=device()))

    router = (matrices("F32", count + 1, HIDDEN, 1)[0],)
    return Experts(router, slots(gate, low, count), slots("Q8_0", "Q8_0", 1))


def routes(tokens: int, count: int) -> list[Routed]:
    """Uses of all experts in turn."""
    made = []
    for _ in range(max(1, count // (tokens * CHOSEN))):
        ids = torch.randperm(count, device=device())[: tokens * CHOSEN].int().view(tokens, CHOSEN)
        weights = torch.full((tokens, CHOSEN), 0.1, device=device())
        made.append(Routed(ids, weights, torch.zeros(tokens, device=device()), ids))
    return made


def expert_cases(gate: str, low: str, tokens: int, cuts: list[Cut], part: str) -> Iterator[Case]:
    shared = 3 * SIZE * HIDDEN // 32 * 34
    rows = 2 * SIZE * LAYOUTS[gate].row_bytes(HIDDEN), HIDDEN * LAYOUTS[low].row_bytes(SIZE)
    for cut in cuts:

        def make(cut: Cut = cut) -> list[Launch]:
            layer, count = layer_of(gate, low, 400), 400
            x = columns(tokens, HIDDEN, fine=False)
            every = [r for _ in range(4) for r in routes(tokens, count)]
            if part == "gate+up":
                return [lambda r=r: gate_up(layer, x, r, cut) for r in every]
            hidden = gate_up(layer, x, every[0], cut)
            return [lambda r=r: down(layer, hidden, r, cut) for r in every]

        size = (
            rows[0] * CHOSEN * tokens + shared * 2 // 3
            if part == "gate+up"
            else rows[1] * CHOSEN * tokens + shared // 3
        )
        label = (
            f" apart {cut.apart} words {cut.words} each {cut.each}"
            if part == "gate+up"
            else f" rows {cut.rows} groups {cut.groups}"
        )
        yield Case(f"{part} {gate if part == 'gate+up' else low} T{tokens}{label}", size, make)


def small_cases(tokens: int) -> Iterator[Case]:
    def routing() -> list[Launch]:
        layers = [
            Experts(
                (m,),
                Slots(SlotShape(*[BY_NAME["Q8_0"]] * 3, 32, 32, 32), m.data, torch.arange(512, device=device())),
                None,
            )  # type: ignore[arg-type]
            for m in matrices("F32", 513, HIDDEN, 80)
        ]
        x = columns(tokens, HIDDEN)
        return [lambda layer=layer: route_experts(layer, x, CHOSEN) for layer in layers]

    def best() -> list[Launch]:
        logits = [torch.randn(tokens, 248320, device=device()) for _ in range(20)]
        return [lambda y=y: argmax(y) for y in logits]

    def quantising() -> list[Launch]:
        x = torch.randn(tokens, 6144, device=device())
        return [lambda: quantize(x) for _ in range(100)]

    yield Case(f"route (2 launches) T{tokens}", 513 * HIDDEN * 4, routing)
    yield Case(f"argmax (2 launches) T{tokens}", 248320 * 4 * tokens, best)
    yield Case(f"quantize 6144 T{tokens}", 6144 * 4 * tokens, quantising)


def chain_case(tokens: int, layers: int = 48) -> Case:
    """All weight-reading kernels of a step but the head's, without what lies between them."""
    wide, rows = STREAMS * HIDDEN, 16384
    size = layers * (
        2 * (RANK * wide // 32 * 34 * 2 + 4 * wide * 4)
        + rows * HIDDEN // 32 * 34 + 96 * HIDDEN * 4 + HIDDEN * 6144 // 32 * 34 + 513 * HIDDEN * 4
        + tokens * CHOSEN * SlotShape(*(BY_NAME[n] for n in ("IQ3_XXS", "IQ3_XXS", "IQ4_NL")), SIZE, HIDDEN, SIZE).bytes
        + 3 * SIZE * HIDDEN // 32 * 34
    )  # fmt: skip

    def make() -> list[Launch]:
        mix = mixes(2 * layers)
        joint = list(zip(matrices("Q8_0", rows, HIDDEN, layers), matrices("F32", 96, HIDDEN, layers), strict=True))
        back = matrices("Q8_0", HIDDEN, 6144, layers)
        expert = [layer_of("IQ3_XXS", "IQ4_NL", 64) for _ in range(layers)]
        streams = torch.randn(tokens, STREAMS, HIDDEN, device=device())
        out = torch.empty(tokens, rows + 96, device=device())
        y = columns(tokens, 6144)

        def step() -> None:
            x, inject = hyper_mix(streams, mix[0])
            for i in range(layers):
                assert inject is not None
                launch(joint[i], x, out)
                x, inject = linear_mix(back[i], y, streams, inject, mix[2 * i + 1], fine=False)
                routed = route_experts(expert[i], x, CHOSEN)
                assert inject is not None
                x, inject = experts_mix(expert[i], x, routed, streams, inject, mix[(2 * i + 2) % len(mix)])

        return [step, step]

    return Case(f"a step of {layers} layers T{tokens}", size, make)


def prompt_cases(tokens: int) -> Iterator[Case]:
    """Bytes are those of the weights; a prompt is bound by arithmetic."""

    def product() -> list[Launch]:
        x = torch.randn(tokens, HIDDEN, device=device())
        return [lambda m=m: linear(m, x) for m in matrices("Q8_0", 16384, HIDDEN, 8)]

    def mixture() -> list[Launch]:
        layer, x = layer_of("IQ3_XXS", "IQ4_NL", 512), torch.randn(tokens, HIDDEN, device=device())
        ids = torch.rand(tokens, 512, device=device()).topk(CHOSEN).indices.int()
        weights, share = torch.full((tokens, CHOSEN), 0.1, device=device()), torch.zeros(tokens, device=device())
        return [lambda: experts(layer, x, Routed(ids, weights, share)) for _ in range(4)]

    def mixing() -> list[Launch]:
        streams = torch.randn(tokens, STREAMS, HIDDEN, device=device())
        return [lambda m=m: hyper_mix(streams, m) for m in mixes(4)]

    yield Case(f"prompt of {tokens}: product 16384 x 2560", 16384 * HIDDEN // 32 * 34, product)
    yield Case(
        f"prompt of {tokens}: experts",
        512 * SlotShape(*(BY_NAME[n] for n in ("IQ3_XXS", "IQ3_XXS", "IQ4_NL")), SIZE, HIDDEN, SIZE).bytes,
        mixture,
    )
    yield Case(f"prompt of {tokens}: hyper mix", RANK * STREAMS * HIDDEN // 32 * 68, mixing)


def cuts_of(tokens: int, part: str, sweep: bool) -> list[Any]:
    """What to try."""
    one = tokens == 1
    if not sweep:
        return [usual_cut(tokens)] if part in ("gate+up", "down") else [None]
    if part == "projections":
        return [Shape(8, 10)] if one else [Shape(8, 2, 4, 4), Shape(8, 5, 2, 4)]
    if part == "output":
        return [Shape(8, 12)] if one else [Shape(8, 12, 1, 4), Shape(8, 6, 2, 4)]
    if part == "head":
        return [] if one else [Shape(8, 5, 2, 4), Shape(8, 2, 4, 4)]
    if part == "hyper":
        return [HyperCut(*cut) for cut in ((8, 5, 2), (4, 5, 2), (4, 5, 4), (8, 10, 1), (4, 10, 1))]
    if part == "gate+up":
        return [Cut(apart=words) for words in (10, 25, 50)] + [
            Cut(words=words, each=each) for words in (9, 18, 45) for each in (1, 2)
        ]
    return [Cut(rows=rows, groups=groups) for rows in (8, 16) for groups in (1, 2, 4)]


def cases(sweep: bool, types: bool) -> Iterator[Case]:
    for t in (1, 4):
        for shape in cuts_of(t, "projections", sweep):
            yield linear_case("projections 16384+96 x 2560", [("Q8_0", 16384), ("F32", 96)], HIDDEN, t, shape)
        for shape in cuts_of(t, "output", sweep):
            yield linear_case("output 2560 x 6144", [("Q8_0", HIDDEN)], 6144, t, shape)
        for shape in cuts_of(t, "head", sweep):
            yield linear_case("head 248320 x 2560", [("Q8_0", 248320)], HIDDEN, t, shape)
        for cut in cuts_of(t, "hyper", sweep):
            yield hyper_case(t, cut)
        yield from hyper_pieces(t)
        yield from expert_cases("IQ3_XXS", "IQ4_NL", t, cuts_of(t, "gate+up", sweep), "gate+up")
        yield from expert_cases("IQ3_XXS", "IQ4_NL", t, cuts_of(t, "down", sweep), "down")
        yield from small_cases(t)
        yield chain_case(t)
    yield from prompt_cases(4096)
    if types:
        for name, layout in LAYOUTS.items():
            yield linear_case(f"{name} 12288 x 2560", [(name, 12288)], HIDDEN, 1, None)
            for t in () if layout.number else (1, 4):
                yield from expert_cases(name, "IQ4_NL", t, [usual_cut(t)], "gate+up")


def check(golden: Path, part_of: int, parts: int) -> list[str]:
    """What differs from the CPU's bits, in one part of the golden products."""
    import numpy as np

    from jubako.ops.gpu.planar import repack

    data, wrong = np.load(golden), []
    x = torch.from_numpy(data["x"]).to(device())
    keys = [key for key in data.files if key.partition(".")[2].startswith("rows")]
    for key in keys[part_of::parts]:
        name, _, part = key.partition(".")
        raw = torch.from_numpy(data[key]).to(device())
        width = 640 if part == "rows640" else HIDDEN
        m = Matrix(repack(BY_NAME[name], raw), BY_NAME[name], len(raw), width)
        want = data[f"{name}.y{part[4:]}"]
        for t in (1, 4, 16) if name in ("Q8_0", "Q4_K", "IQ3_XXS", "F32") else (1,):
            got = products.linear(m, x[:t, :width]).cpu().numpy()
            same = (got.view(np.uint32) == want[:t].view(np.uint32)).mean()
            error = float(np.abs(got - want[:t]).max() / np.abs(want[:t]).max())
            if same < 1 and not (LAYOUTS[name].number and error < 1e-6):
                wrong.append(f"{key} T{t}: {same:.3f} of the bits agree, error {error:.2e}")
    return wrong + check_experts(data, part_of, parts)


def check_experts(data: Any, part_of: int, parts: int) -> list[str]:
    import numpy as np

    from jubako.ops.gpu.planar import repack

    wrong = []
    for key in [k for k in data.files if k.startswith("E.") and k.endswith(".y")][part_of::parts]:
        _, gate, low, shared, _ = key.split(".")
        raws = [torch.from_numpy(data[f"{key[:-1]}{i}"]).to(device()) for i in range(6)]

        def slots(kinds: tuple[str, str, str], parts: list[torch.Tensor]) -> Slots:
            parts = [p.reshape(-1, *p.shape[-2:]) for p in parts]
            size, hidden = parts[0].shape[1], parts[2].shape[1]
            shape = SlotShape(*(BY_NAME[k] for k in kinds), size, hidden, size)
            room = torch.zeros(len(parts[0]), shape.bytes, dtype=torch.uint8, device=device())
            ends = (0, shape.up_at, shape.down_at, shape.bytes)
            for kind, part, a, b in zip(kinds, parts, ends[:-1], ends[1:], strict=True):
                repack(BY_NAME[kind], part, room[:, a:b])
            return Slots(shape, room, torch.arange(len(room), dtype=torch.int32, device=device()))

        layer = Experts((), slots((gate, gate, low), raws[:3]), slots((shared, shared, shared), raws[3:]))
        routed = Routed(*(torch.from_numpy(data[k]).to(device()) for k in ("ids", "weights", "share")))
        got = experts(layer, torch.from_numpy(data["xe"]).to(device()), routed).cpu().numpy()
        same = (got.view(np.uint32) == data[key].view(np.uint32)).mean()
        if same < 1:
            wrong.append(f"{key}: {same:.3f} of the bits agree, error {np.abs(got - data[key]).max():.2e}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--only", nargs="*", default=[""], help="names that begin with one of these")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--worker", type=int, nargs=2)
    parser.add_argument("--check", type=int, nargs=2)
    parser.add_argument("--seconds", type=float, default=200)
    options = parser.parse_args()
    every = [c for c in cases(options.sweep, options.types) if c.name.startswith(tuple(options.only))]
    if options.check:
        for line in check(options.golden, *options.check):
            print("WRONG", line, flush=True)
        return
    if options.worker:
        global ROTATION
        ROTATION = 1 << 20
        for case in every[options.worker[0] :: options.worker[1]]:
            if not case.name.startswith("a step"):
                try:
                    case.make()[0]()
                    torch.cuda.synchronize()
                except Exception as error:
                    print("compiling", case.name, "failed:", str(error)[-600:], flush=True)
        return
    start = time.time()
    workers = 15
    command = [sys.executable, *sys.argv]
    running = [subprocess.Popen([*command, "--worker", str(i), str(workers)]) for i in range(workers)]
    if options.golden:
        running += [subprocess.Popen([*command, "--check", str(i), "8"]) for i in range(8)]
    for process in running:
        process.wait()
    print(f"compiled after {time.time() - start:.0f} s", flush=True)
    results: dict[str, dict[str, float]] = {}
    for case in every:
        if time.time() - start > options.seconds:
            print("out of time at", case.name)
            break
        try:
            launches = case.make()
            t = eager_time(launches) if case.name.startswith("prompt") else graph_time(launches)
        except Exception as error:
            print(case.name, "failed:", str(error)[-600:], flush=True)
            continue
        results[case.name] = {"us": t, "bytes": case.size, "TB/s": case.size / t / 1e6}
        print(f"{case.name:64s} {t:9.2f} µs {case.size / 1e6:9.2f} MB {case.size / t / 1e6:6.2f} TB/s", flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "kernels.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
        del launches
    print(f"done after {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
