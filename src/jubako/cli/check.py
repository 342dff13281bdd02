"""`jubako check`: every published model that is known, on this machine."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..measure.like import like
from ..place.census import Census, take_census
from ..place.check import Judgement, judge
from ..place.fit import make_plan
from ..place.known import MODELS, Known, find
from ..place.machine import Machine
from ..place.plan import Plan, Wish
from ..place.sizes import size_text as size
from . import program
from .boxes import plain_table, speed
from .plan import EXIT, STYLE, check_context, machine_name, machine_of


@dataclass(frozen=True)
class Row:
    """One model's outcome."""

    known: Known
    census: Census
    plan: Plan
    judgement: Judgement


def check(wish: Wish, figures: Path | None, json: bool) -> int:
    """Print the verdicts; the exit code of the best one."""
    counted = [(known, census_of(known.name)) for known in MODELS]
    kinds = {kind: None for _, census in counted for kind in census.kinds}
    every = counted[0][1]
    check_context(wish, every)
    machine = machine_of(figures, every, Path.cwd(), list(kinds))
    rows = [_row(known, census, machine, wish) for known, census in counted]
    if json:
        print(json_module.dumps([_as_json(row) for row in rows], indent=1))
    else:
        _show(Console(), machine, rows)
    return min((EXIT[row.judgement.verdict] for row in rows), key=lambda code: (0, 3, 1).index(code))


@cache
def census_of(known_name: str) -> Census:
    """A published model's; counting it takes a tenth of a second."""
    return take_census(like(find(known_name)))


def best_of(machine: Machine, wish: Wish) -> Row | None:
    """The largest published model that fits, else the one that fits tightly and runs fastest."""
    rows = [_row(known, census_of(known.name), machine, wish) for known in MODELS]
    fitting = [row for row in rows if row.judgement.verdict == "fits"]
    if fitting:
        return max(fitting, key=lambda row: row.census.total)
    tight = [row for row in rows if row.judgement.verdict == "tight"]
    return min(tight, key=lambda row: row.plan.box("SSD").bytes_of("experts"), default=None)


def _row(known: Known, census: Census, machine: Machine, wish: Wish) -> Row:
    plan = make_plan(census, machine, wish)
    return Row(known, census, plan, judge(plan, min(wish.context or 32_768, 32_768)))


def _as_json(row: Row) -> dict[str, object]:
    predicted = row.plan.speed
    return {
        "name": row.known.name,
        "bytes": row.known.size or row.census.total,
        "exact": bool(row.known.size),
        "verdict": row.judgement.verdict,
        "why": row.judgement.why,
        "context": row.plan.context,
        "decode": predicted and predicted.flat.rate,
        "decode_skewed": predicted and predicted.skewed.rate,
        "prefill": predicted and predicted.prompts[min(8192, max(predicted.prompts))].rate,
    }


def _show(console: Console, machine: Machine, rows: list[Row]) -> None:
    console.print(f"On {machine_name(machine)}; disk: {size(machine.disk.free)} free.", highlight=False)
    console.print()
    table = plain_table("model", "download", "verdict", "decode", "prompts", "why")
    for column in (2, 5):
        table.columns[column].justify = "left"
    table.columns[2].no_wrap = True
    for row in rows:
        predicted = row.plan.speed
        decode = f"{speed(predicted.flat.rate)}–{speed(predicted.skewed.rate)}" if predicted else ""
        prompts = speed(predicted.prompts[min(8192, max(predicted.prompts))].rate) if predicted else ""
        download = (row.known.size or row.census.total) + row.known.draft_size
        table.add_row(
            row.known.name,
            ("" if row.known.size else "≈ ") + size(download),
            Text(row.judgement.verdict, STYLE[row.judgement.verdict]),
            decode,
            prompts,
            Text(_why(row, machine, download)),
        )
    console.print(table)
    console.print()
    console.print(
        "tok/s, decode with flat and skewed routing, prompts of 8,192. Sizes come from the publishers, what they are "
        f"made of from the network's geometry; ≈: from that alone. Fetch one with: {program.name} pull NAME",
        style="dim",
        highlight=False,
    )
    if all(row.judgement.verdict == "does not fit" for row in rows):
        console.print("None of them fits this machine.", style="bold red")


def _why(row: Row, machine: Machine, download: int) -> str:
    why = row.judgement.why
    if row.judgement.verdict != "does not fit" and download > machine.disk.free:
        why += f"; but the disk has {size(machine.disk.free)} free"
    return why
