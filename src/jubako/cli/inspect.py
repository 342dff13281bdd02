"""jubako inspect: the network's sizes, its tensors by part, what a token reads, what is unused; from headers alone."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..arch.config import Config
from ..arch.weights import load_network
from ..errors import JubakoError
from ..files import ModelFiles, open_model
from ..files.groups import part_of
from ..files.summary import Part, Routing, draft_bytes, parts_of


@dataclass
class Inspection:
    """What the command found. `problem` says why the files alone do not make a network, if so."""

    files: ModelFiles
    config: Config | None
    parts: list[Part]
    unused: list[str]
    problem: str
    draft_bytes: int

    @property
    def token_bytes(self) -> int:
        return sum(part.token_bytes for part in self.parts)


def inspect(files: list[Path], json: bool = False) -> None:
    """Print what the files hold, as tables or as one JSON object."""
    found = examine(open_model(files))
    if json:
        print(json_module.dumps(as_json(found), indent=1))
    else:
        print_tables(found, Console())


def examine(files: ModelFiles) -> Inspection:
    """Read the sizes and count the tensors. Files that are not a whole network are described all the same."""
    config, unused, problem = None, [], ""
    try:
        config = Config.from_files(files)
        if files.kind == "gguf":
            unused = load_network(files).unused
    except JubakoError as error:
        problem = str(error)
    routing = routing_of(files, config)
    if files.kind == "safetensors":
        unused = [name for name in files.tensors if part_of(name) in ("vision", "other")]
    return Inspection(files, config, parts_of(files, routing), unused, problem, draft_bytes(files, routing))


def routing_of(files: ModelFiles, config: Config | None) -> Routing:
    if config is None:
        return Routing(files.trunk_layers(), 0, 0, 0)
    ngram_rows = config.ngram.heads if config.ngram else 0
    return Routing(config.layers, config.experts, config.experts_used, ngram_rows)


def sizes(config: Config) -> dict[str, str]:
    """The sizes a reader asks for first, in words."""
    recurrent = sum(config.recurrent)
    text = {
        "network": "".join(c if c.isprintable() else "?" for c in config.name),
        "layers": f"{config.layers} ({recurrent} gated delta net, {config.layers - recurrent} attention)"
        + (f" + {config.draft_layers} draft" if config.draft_layers else ""),
        "hidden size": f"{config.hidden:,} in {config.streams} streams, mixed through rank {config.hyper_rank}",
        "vocabulary": f"{config.vocabulary:,}",
        "context": f"{config.context_length:,} tokens",
        "attention": f"{config.heads} heads on {config.kv_heads} of {config.head_dim}",
        "block-sparse": f"{config.index_budget} tokens, chosen by {config.index_heads} heads of {config.index_dim}",
        "gated delta net": f"{config.gdn_key_heads} key, {config.gdn_value_heads} value heads of {config.gdn_dim}",
        "experts": f"{config.experts} of width {config.expert_size}, {config.experts_used} used,"
        f" and a shared one of {config.shared_expert_size}",
    }
    if config.ngram:
        text["n-gram table"] = f"{config.ngram.rows:,} rows of {config.ngram.width}, {config.ngram.heads} read a token"
    return text


def as_json(found: Inspection) -> dict[str, Any]:
    """Everything the tables show, numbers in bytes and weights."""
    config = found.config
    return {
        "kind": found.files.kind,
        "files": [{"path": str(path), "bytes": path.stat().st_size} for path in found.files.paths],
        "sizes": None if config is None else _numbers(config),
        "parts": [part.as_dict() for part in found.parts],
        "weights": sum(part.weights for part in found.parts),
        "bytes": sum(part.bytes for part in found.parts),
        "token_bytes": found.token_bytes if config is not None else None,
        "draft_bytes": found.draft_bytes if config is not None else None,
        "unused": found.unused,
        "replaced": [f"{tensor.name} of {tensor.file.name}" for tensor in found.files.replaced],
        "problem": found.problem or None,
    }


def _numbers(config: Config) -> dict[str, Any]:
    names = (
        "name layers draft_layers hidden vocabulary context_length heads kv_heads head_dim index_heads index_dim "
        "index_budget gdn_key_heads gdn_value_heads gdn_dim experts experts_used expert_size shared_expert_size "
        "streams hyper_rank"
    )
    numbers = {name: getattr(config, name) for name in names.split()}
    if config.ngram:
        numbers |= {
            "ngram_rows": config.ngram.rows,
            "ngram_width": config.ngram.width,
            "ngram_heads": config.ngram.heads,
        }
    return numbers


def print_tables(found: Inspection, console: Console) -> None:
    for path in found.files.paths:
        console.print(Text(f"{path}  {human(path.stat().st_size)}", "bold"), soft_wrap=True)
    if found.config is not None:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in sizes(found.config).items():
            table.add_row(Text(name, "dim"), Text(value))
        console.print(table)
    console.print(_parts_table(found))
    if found.config is not None and found.draft_bytes:
        console.print(f"A pass of the draft layer reads {human(found.draft_bytes)}.")
    if found.unused:
        console.print(
            f"Unused, {len(found.unused)}:", Text(", ".join(found.unused[:20])), "…" * (len(found.unused) > 20)
        )
    elif not found.problem:
        console.print("Every tensor is used.")
    if found.files.replaced:
        console.print(f"{len(found.files.replaced)} tensors are replaced by those of a later file.")
    if found.problem:
        console.print(Text(f"Not a network by itself: {found.problem}", "yellow"), soft_wrap=True)


def _parts_table(found: Inspection) -> Table:
    table = Table(header_style="dim", box=None, padding=(0, 2, 0, 0))
    table.add_column("part", no_wrap=True)
    table.add_column("type")
    for column in ("tensors", "weights", "bits", "bytes", "a token reads"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = ""
    for part in found.parts:
        name = "" if part.part == previous else part.part
        previous = part.part
        counts = (f"{part.tensors:,}", human(part.weights, ""), f"{part.bits_per_weight:.2f}", human(part.bytes))
        table.add_row(name, part.type, *counts, human(part.token_bytes) if found.config and part.token_bytes else "-")
    weights, size = sum(part.weights for part in found.parts), sum(part.bytes for part in found.parts)
    bits = f"{8 * size / weights:.2f}" if weights else "-"
    tensors = sum(part.tensors for part in found.parts)
    table.add_section()
    total = human(found.token_bytes) if found.config is not None else "-"
    table.add_row("all", "", f"{tensors:,}", human(weights, ""), bits, human(size), total, style="bold")
    return table


def human(count: int, unit: str = "B") -> str:
    """A number in decimal units, three digits: 28.8 GB."""
    value, prefixes = float(count), ["", "k", "M", "G", "T"]
    while value >= 999.5 and len(prefixes) > 1:
        value /= 1000
        prefixes.pop(0)
    return f"{value:.3g} {prefixes[0]}{unit}".rstrip()
