"""`jubako synth`: a random file of real widths."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from ..arch.config import Config
from ..measure.geometry import network_config
from ..measure.synth import synth as write
from ..measure.tensor_plan import BlockTypes, PlannedTensor, Routing, plan_tensors


def synth(
    out: Path,
    layers: int,
    experts: int,
    vocab: int,
    context: int,
    ngram_rows: int,
    types: str,
    draft: bool,
    routing: Routing,
    seed: int,
    dry_run: bool,
) -> None:
    """Print what the file holds, then write it (unless it is a dry run)."""
    console = Console(stderr=True)
    config = network_config(layers, experts, vocab, context, ngram_rows, draft)
    chosen = BlockTypes.parse(types)
    plan = plan_tensors(config, chosen)
    console.print(_table(config, plan))
    for asked, kind in sorted({(tensor.replaced, tensor.type.name) for tensor in plan if tensor.replaced}):
        names = [tensor.name for tensor in plan if tensor.replaced == asked and tensor.type.name == kind]
        console.print(f"{asked} does not fit the rows of {len(names)} tensors ({names[0]} …); they get {kind}")
    if dry_run:
        return
    total = sum(tensor.nbytes for tensor in plan)
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    started = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(out.name, total=total)
        write(out, config, chosen, routing, seed, progress=lambda done: bar.advance(task, done))
    seconds = time.perf_counter() - started
    size = out.stat().st_size
    done = f"{out}: {size / 1e9:.3f} GB in {seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s"
    console.print(done, highlight=False, markup=False)


def _table(config: Config, plan: list[PlannedTensor]) -> Table:
    """Bytes by block type and part."""
    groups: dict[tuple[str, str], list[PlannedTensor]] = defaultdict(list)
    for tensor in plan:
        groups[_part(tensor.name), tensor.type.name].append(tensor)
    table = Table(title=f"{config.name}, vocabulary {config.vocabulary:,}")
    for heading in ("part", "type", "tensors", "weights", "bytes"):
        table.add_column(heading, justify="left" if heading in ("part", "type") else "right")
    for (part, kind), tensors in groups.items():
        weights = sum(tensor.rows * tensor.shape[-1] for tensor in tensors)
        table.add_row(part, kind, str(len(tensors)), f"{weights:,}", f"{sum(t.nbytes for t in tensors):,}")
    total = sum(tensor.nbytes for tensor in plan)
    table.add_section()
    table.add_row("all", "", str(len(plan)), "", f"{total:,}")
    return table


def _part(name: str) -> str:
    if "_exps" in name:
        return "experts down" if "down" in name else "experts gate, up"
    if not name.startswith("blk."):
        return {"token_embd.weight": "embedding", "per_layer_token_embd.weight": "n-gram table"}.get(name, "head")
    return "layers"
