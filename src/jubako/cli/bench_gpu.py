"""`jubako bench --device cuda`: steps and prompts of a model, or of a random one of full size, on the GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from ..arch.weights import load_network
from ..errors import RequestError
from ..files import open_model

WIDTHS = (1, 4)


def bench_gpu(
    files: Sequence[Path],
    synth: bool,
    cards: tuple[tuple[int, ...] | None, int | None, int | None],
    depths: Sequence[int],
    prompt: int,
    repeat: int,
    kv_bits: int,
    profile: Path | None,
    out: Path | None,
    types: str = "",
    drafts: int | None = None,
    temperature: float = 0.7,
) -> None:
    """Measure, print tables, write JSON to `out` if given ("-" is standard output, without the tables).

    cards: the GPUs, bytes of each that may be used, and of main memory; None: all that help, all that is free. types:
    block types of a random network, as `jubako synth` takes them; drafts: time speculative steps of so many, and with a
    file what they gain on real text at `temperature`.
    """
    from ..engine.gpu.device import free_bytes, gpu_executor, open_gpus
    from ..engine.gpu.executor import GpuExecutor
    from ..engine.gpu.several import runs_of
    from ..engine.model import Model
    from ..measure.bench_gpu import GpuBench
    from ..measure.drafts import measure_drafts
    from ..measure.geometry import network_config
    from ..measure.gpu_report import markdown
    from ..measure.predicted import Predictor, table
    from ..measure.synth_gpu import synthetic_network
    from ..measure.tensor_plan import BlockTypes
    from ..place.plan import Wish

    if bool(files) == synth:
        raise RequestError("bench on a GPU takes a model file, or --synth for a random network of full size")
    if types and not synth:
        raise RequestError("--types is for --synth; a file has its own")
    if synth and cards[2] is not None:
        raise RequestError("--ram is for a file; a random network lies in video memory")
    console = Console(stderr=True)
    context = max(depths) + prompt + 4096
    with console.status("") as status:
        if synth:
            devices = open_gpus(cards[0])
            config = network_config(ngram_rows=2_000_000, draft=drafts is not None)
            context = min(context, config.context_length)
            made = [synthetic_network(config, d, BlockTypes.parse(types), draft_head="Q4_0") for d in devices]
            network, rooms = made[0][0], [free_bytes(device, cards[1]) for device in devices]
            runs = runs_of(network, devices, rooms, kv_bits=kv_bits, sequences=2, tokens=context, context=context)
            executor = GpuExecutor(
                network, devices, runs=runs, kv_bits=kv_bits, context=context, source=[source for _, source in made]
            )
        else:
            opened = open_model(list(files))
            network = load_network(opened)
            context = min(context, network.config.context_length)
            executor = gpu_executor(network, kv_bits, context, 2, *cards)
        status.update("asking the plan")
        wish = Wish(context, cards[1], cards[2], None, 2, cards[0], kv_bits)
        predictor = Predictor.here(network, files[0] if files else Path.cwd(), wish)
        bench = GpuBench(network, executor, kv_bits, status.update)
        report = bench.report(WIDTHS if drafts is None else (*WIDTHS, drafts + 1))
        for depth in depths:
            for width in WIDTHS:
                trace = profile if depth == depths[0] and width == 1 else None
                report.steps.append(bench.steps(depth, width, profiled=profile is not None, trace=trace))
            if drafts is not None and network.draft is not None:
                report.speculative.append(bench.speculative(depth, drafts, profiled=profile is not None))
            report.prompts.append(bench.prompt(prompt, depth, repeat))
        report.memory.append(bench.memory("at the end"))
        if drafts is not None and network.draft is not None and not synth:
            model = Model(network, executor, opened, context)
            # a file without a vocabulary can't read text
            for most, fixed in ((drafts, True), (None, False)) if model.template is not None else ():
                report.texts += measure_drafts(model, most, fixed, temperature=temperature, note=status.update)
    beside = [] if predictor is None else predictor.beside(report)
    text = json.dumps(report.as_json() | {"plan": beside}, indent=2)
    if out == Path("-"):
        print(text)
        return
    Console().print(Markdown("\n\n".join([markdown(report), table(beside)] if beside else [markdown(report)])))
    if out:
        out.write_text(text + "\n")
