"""`jubako bench`: prefill and decode at given depths, beside what the machine's memory gives."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..errors import RequestError
from ..measure.bench import Report
from ..measure.bench import bench as measure
from ..measure.drafts import DraftRates


def bench(
    files: list[Path],
    depths: str,
    prompt: int,
    tokens: int,
    repeat: int,
    device: str,
    threads: int | None,
    kv_bits: int,
    ram: int | None,
    gpus: tuple[int, ...] | None,
    vram: int | None,
    fill: str,
    isa: str | None,
    drafts: int | None,
    temperature: float,
    out: Path | None,
) -> None:
    """Measure, print a table, write JSON to `out` if given ("-" is standard output, without the table)."""
    console = Console(stderr=True)
    with console.status("") as status:
        report = measure(
            files,
            parse_depths(depths),
            prompt,
            tokens,
            repeat,
            device,
            threads,
            kv_bits,
            ram,
            gpus,
            vram,
            fill,
            isa,
            drafts,
            temperature,
            note=status.update,
        )
    text = json.dumps(report.as_json(), indent=2)
    if out == Path("-"):
        print(text)
        return
    show(report, Console())
    if out:
        out.write_text(text + "\n")


def parse_depths(text: str) -> list[int]:
    """ "0,4096,64K" -> [0, 4096, 65536]. Raises RequestError for anything else."""
    depths = []
    for part in text.split(","):
        part = part.strip().upper()
        number, factor = (part[:-1], 1024) if part.endswith("K") else (part, 1)
        if not number.isdecimal():
            raise RequestError(f"--depths is {text!r}; it must be numbers of tokens such as 0,4096,64K")
        depths.append(int(number) * factor)
    return depths


def show(report: Report, console: Console) -> None:
    """The report as a table with the sums below it."""
    table = Table(
        title=f"{report.name} · {report.device}, {report.isa}, {report.threads} threads, KV {report.kv_bits} bit"
    )
    for heading in ("depth", "prefill tok/s", "plan", "decode tok/s", "plan", "ms/token", "GB/token", "of bandwidth"):
        table.add_column(heading, justify="right")
    for rate in report.rates:
        table.add_row(
            f"{rate.depth:,}" + (" *" if rate.filled == "random" else ""),
            f"{rate.prefill:.1f}",
            _beside(rate.predicted_prefill, rate.prefill),
            f"{rate.decode:.2f}",
            _beside(rate.predicted_decode, rate.decode),
            f"{1000 / rate.decode:.1f}",
            f"{rate.bytes_per_token / 1e9:.3f}",
            f"{rate.bandwidth_share:.0%}",
        )
    console.print(table)
    cost = report.traffic
    lines = [
        f"A token reads {cost.weights / 1e9:.3f} GB of weights ({cost.dense / 1e9:.3f} dense, {cost.experts / 1e9:.3f} "
        f"experts) and moves {cost.state / 1e9:.3f} GB of state; GB/token adds the cache at that depth.",
        f"Read bandwidth in this run: {report.read_bandwidth / 1e9:.1f} GB/s. Prompts of {report.prompt} tokens, "
        f"{report.tokens} decoded, medians; plan: what `jubako plan` predicts. Load: {report.load_seconds:.2f} s"
        + (f"; memory beyond the file: {report.private_bytes / 1e6:.0f} MB." if report.private_bytes else "."),
    ]
    if any(rate.filled == "random" for rate in report.rates):
        lines.append("* The context before was filled with random keys and values, not read.")
    for line in lines:
        console.print(line, highlight=False)
    if report.drafts:
        show_drafts(report.drafts, console)


def _beside(predicted: float | None, measured: float) -> str:
    """What the plan said, and by how much it was exceeded."""
    return "-" if predicted is None else f"{predicted:.1f} ({measured / predicted - 1:+.0%})"


def show_drafts(rates: list[DraftRates], console: Console) -> None:
    """What drafts gained on each kind of text."""
    table = Table(title="Drafts on real text")
    for heading in ("text", "drafts", "ms without", "ms/step", "drafting", "tok/step", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kept by place", no_wrap=True)
    for rate in rates:
        kept = [f"{a / d:.2f}" for a, d in zip(rate.accepted, rate.drafted, strict=False)]
        table.add_row(
            rate.kind,
            str(rate.most) if rate.fixed else "as pays",
            f"{rate.plain_ms:.2f}",
            f"{rate.ms:.2f}",
            f"{rate.draft_ms:.2f}",
            f"{rate.tokens_per_step:.2f}",
            f"{rate.speed_up:.2f}×",
            " ".join(kept[:3]) + (" …" if len(kept) > 3 else ""),
        )
    console.print(table)
