"""`jubako probe`: measure this machine once, keep the figures, show them."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..errors import RequestError
from ..place.machine import Machine
from ..place.probe import probe as measure
from ..place.probe import store
from ..place.probe.cpu import REFERENCE
from ..place.sizes import size_text as size
from .boxes import plain_table


def probe(place: Path, json: bool) -> None:
    """Measure with a progress bar, store, and print."""
    if not place.exists():
        raise RequestError(f"{place}: there is no such file or folder; name where models lie")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<36}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        machine = measure(place, lambda what, share: bar.update(task, description=what, completed=share))
    try:
        kept = f"kept in {store(machine)}"
    except OSError as error:
        kept = f"not kept: {error}"
    if json:
        print(json_module.dumps(machine.as_json(), indent=1))
    else:
        show(Console(), machine)
        console.print(f"Measured in {machine.seconds:.0f} s, {kept}", style="dim", highlight=False)


def show(console: Console, machine: Machine) -> None:
    """The figures that matter to people; `--json` has all."""
    who = machine.identity
    console.print(Text(f"{who.cpu}, {who.cores} cores, {machine.isa}", "bold"))
    table = plain_table("", "")
    table.show_header = False
    table.columns[1].justify = "left"
    for row in (*_memory(machine), *_disk(machine), *_cards(machine)):
        table.add_row(Text(row[0], "dim"), row[1])
    console.print(Group(table, Text(), _kernels(machine)))
    for note in machine.notes:
        console.print(note, style="yellow")


def _memory(machine: Machine) -> list[tuple[str, str]]:
    reads = ", ".join(f"{size(rate)}/s by {n}" for n, rate in machine.ram_read.items())
    return [
        ("RAM", f"{size(machine.ram_free)} of {size(machine.ram_limit)} free"),
        ("RAM read", f"{reads} threads"),
    ]


def _disk(machine: Machine) -> list[tuple[str, str]]:
    disk = machine.disk
    way = "past the page cache" if disk.direct else "through the page cache, which flatters it"
    return [
        ("disk", f"{disk.path}: {size(disk.free)} free"),
        (
            "disk read",
            f"{size(disk.sequential)}/s in order, {disk.random_reads:,.0f} reads/s of 4 KiB here and there, "
            f"{disk.latency * 1e6:.0f} µs for one alone, {way}",
        ),
    ]


def _cards(machine: Machine) -> list[tuple[str, str]]:
    rows = []
    for card in machine.cards:
        rows += [
            (
                "GPU",
                f"{card.name}, driver {machine.identity.driver or 'unknown'}: "
                f"{size(card.free)} of {size(card.total)} free",
            ),
            (
                "GPU memory",
                f"{size(card.read)}/s read, {size(card.copy)}/s copied, {card.node * 1e6:.1f} µs a launch in a graph, "
                f"{2 * card.matmul / 1e12:.0f} TFLOPS in half precision",
            ),
            (
                "link",
                f"{size(card.to_card)}/s to the card, {size(card.to_host)}/s back, "
                f"{size(card.mapped)}/s read in place, {card.latency * 1e6:.0f} µs for 4 KiB",
            ),
        ]
    if machine.together:
        both = machine.together
        rows.append(("both at work", f"link {size(both.link)}/s beside CPU experts {size(both.experts)}/s"))
    if machine.pinned:
        rows.append(("can be pinned", size(machine.pinned)))
    return rows


def _kernels(machine: Machine) -> Group:
    table = plain_table("CPU kernels", "experts", "dense", "prompt, experts", "prompt, dense")
    for kind, kernel in sorted(machine.kernels.items(), key=lambda item: -max(item[1].experts.values())):
        table.add_row(
            kind,
            f"{max(kernel.experts.values()) / 1e9:.1f} GB/s",
            f"{kernel.linear / 1e9:.1f} GB/s",
            f"{kernel.experts_macs / 1e9:,.0f} GMAC/s",
            f"{kernel.linear_macs / 1e9:,.0f} GMAC/s",
        )
    threads = machine.kernels[REFERENCE].experts
    by = ", ".join(f"{rate / 1e9:.1f} GB/s by {count}" for count, rate in threads.items())
    return Group(table, Text(f"{REFERENCE} experts: {by} threads", "dim"))
