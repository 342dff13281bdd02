"""`jubako plan`: what would go where and how fast it would be, from headers alone."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import FileFormatError, RequestError
from ..place.census import Census, take_census
from ..place.check import ROOM_TO_WORK, Judgement, judge
from ..place.fit import make_plan
from ..place.machine import Machine
from ..place.plan import Plan, Wish
from ..place.probe import this_machine
from ..place.sizes import size_text as size
from ..place.speed import Estimate
from . import program
from .boxes import bars, plain_table, speed, time

if TYPE_CHECKING:
    from ..arch.weights import Network

EXIT = {"fits": 0, "does not fit": 1, "tight": 3}
STYLE = {"fits": "bold green", "tight": "bold yellow", "does not fit": "bold red"}


def plan(files: Sequence[Path], like: str | None, wish: Wish, figures: Path | None, json: bool, terms: bool) -> int:
    """Print the plan, as tables or as one JSON object; the exit code: 0 fits, 3 tight, 1 does not fit."""
    network, place = network_of(files, like)
    census = take_census(network)
    check_context(wish, census)
    machine = machine_of(figures, census, place)
    made = make_plan(census, machine, wish)
    verdict = judge(made, min(wish.context or ROOM_TO_WORK, census.config.context_length, ROOM_TO_WORK))
    if json:
        print(json_module.dumps(as_json(census, machine, made, verdict), indent=1))
    else:
        console = Console()
        show(console, census, machine, made, verdict, terms, like)
    return EXIT[verdict.verdict]


def check_context(wish: Wish, census: Census) -> None:
    """Raise RequestError where more tokens are wished for than the model takes."""
    most = census.config.context_length
    if (wish.context or 0) > most:
        raise RequestError(f"context is {wish.context}; this model takes 1 to {most}")


def network_of(files: Sequence[Path], like: str | None) -> tuple[Network, Path]:
    """The network of the files, or one like a published model, and the folder whose disk counts."""
    if bool(files) == bool(like):
        raise RequestError("plan takes a model file, or --like NAME for a published model")
    if like:
        from ..measure.like import like as network
        from ..place.known import find

        return network(find(like)), Path.cwd()
    from ..arch.weights import load_network
    from ..files import open_model

    opened = open_model(list(files))
    return load_network(opened), Path(opened.paths[0])


def machine_of(figures: Path | None, census: Census, place: Path, kinds: Sequence[str] | None = None) -> Machine:
    """The figures in a file of `probe --json`, this machine's stored ones, or quick ones measured now."""
    if figures is not None:
        try:
            return Machine.from_json(json_module.loads(figures.read_text()))
        except (OSError, ValueError, RecursionError, FileFormatError) as error:
            raise FileFormatError(f"{figures}: no figures of a machine: {error}") from error
    console = Console(stderr=True)
    with console.status(f"Measuring this machine briefly ({program.name} probe does it thoroughly, once) …"):
        return this_machine(kinds or census.kinds, place)


def as_json(census: Census, machine: Machine, plan: Plan, verdict: Judgement) -> dict[str, Any]:
    """Everything the tables show. Bytes, tokens, tokens/s, seconds."""
    predicted = plan.speed

    def estimate(which: Estimate | None) -> dict[str, Any] | None:
        if which is None:
            return None
        terms = [asdict(term) for term in which.terms]
        return {
            "tokens_per_second": which.rate,
            "limit": which.limit.name,
            "hit_rate": which.hit_rate,
            "terms": terms,
        }

    values = asdict(plan)
    values["speed"] = predicted and {
        "flat": estimate(predicted.flat),
        "skewed": estimate(predicted.skewed),
        "drafted": estimate(predicted.drafted),
        "drafts": predicted.drafts,
        "limits": {str(name): rate for name, rate in predicted.limits.items()},
        "prompts": {str(tokens): estimate(which) for tokens, which in predicted.prompts.items()},
    }
    return {
        "verdict": verdict.verdict,
        "why": verdict.why,
        "model": {
            "name": census.config.name,
            "bytes": census.total,
            "dense": census.stored_bytes,
            "experts": census.expert_bytes,
            "table": census.table,
        },
        "machine": machine.identity.key,
        "measured": machine.measured,
        "plan": values,
    }


def show(
    console: Console, census: Census, machine: Machine, plan: Plan, verdict: Judgement, terms: bool, like: str | None
) -> None:
    """The verdict, the boxes, the speeds and, if asked for, each term of them."""
    console.print(_heading(census, machine, like))
    console.print()
    console.print(verdict_line(verdict))
    if plan.short:
        console.print(_wanted(census), style="dim")
        for note in plan.notes:
            console.print(note, style="yellow")
        return
    console.print()
    console.print(bars(plan.boxes, console.width))
    console.print()
    console.print(_settings(census, plan))
    for note in plan.notes:
        console.print(note, style="yellow")
    if plan.speed is None:
        return
    console.print()
    console.print(_speeds(plan))
    if terms:
        console.print()
        _terms(console, plan)
    console.print()
    console.print(_footnote(machine, plan), style="dim")


def verdict_line(verdict: Judgement) -> Text:
    words = verdict.why[:1].upper() + verdict.why[1:]
    return Text.assemble((verdict.verdict.capitalize() + ". ", STYLE[verdict.verdict]), f"{words}.")


def machine_name(machine: Machine) -> str:
    """Cards, cores and memory in one line."""
    cards = " + ".join(f"{card.name} ({size(card.total)})" for card in machine.cards)
    cpu = f"{machine.identity.cores} cores, {size(machine.ram_limit)} RAM"
    return f"{cards}, {cpu}" if cards else f"no GPU, {cpu}"


def _heading(census: Census, machine: Machine, like: str | None) -> Text:
    config = census.config
    name = "".join(c if c.isprintable() else "?" for c in config.name)
    text = Text(name, "bold")
    text.append(
        f"  {size(census.total)}: {config.layers} layers, {config.experts} experts, "
        f"{config.experts_used} used" + (", a draft layer" if census.draft else ""),
        "default not bold",
    )
    if like:
        text.append("  (sizes from its geometry; the published mix of types may differ by layer)", "dim not bold")
    text.append(f"\non {machine_name(machine)}", "not bold")
    return text


def _wanted(census: Census) -> str:
    return (
        f"It consists of {size(census.stored_bytes)} that every token reads, {size(census.expert_bytes)} of experts "
        f"and an n-gram table of {size(census.table)} that stays on the disk."
    )


def _settings(census: Census, plan: Plan) -> Text:
    count = census.config.experts
    text = Text()
    sequences = f"{plan.sequences} answers at a time, " if plan.sequences > 1 else ""
    text.append(f"{sequences}{plan.context:,} tokens of context, keys and values in {plan.kv_bits} bits")
    text.append(".")
    if plan.cards and not plan.resident:
        text.append(
            f" {min(plan.slots)} of {count} experts a layer in VRAM at a time; of absent ones the GPU reads "
            f"{plan.link_share:.0%} over the link, {plan.threads} CPU threads work on the rest. "
            f"Prompts in chunks of {plan.chunk:,}."
        )
    elif plan.cards:
        text.append(f" All experts in VRAM. Prompts in chunks of {plan.chunk:,}.")
    else:
        text.append(f" {plan.threads} CPU threads.")
    if plan.expert_ram and min(plan.ram_experts) < count:
        text.append(f" RAM holds {min(plan.ram_experts)} of {count} experts a layer at a time.")
    return text


def _speeds(plan: Plan) -> Table:
    """Predicted speeds, and what they would be if nothing were lost where parts meet."""
    assert plan.speed is not None
    predicted, limits = plan.speed, plan.speed.limits
    hits = ("hits",) if plan.cards else ()
    table = plain_table("predicted", "tok/s", "limit", "takes", *hits, "mostly limited by")
    table.columns[-1].justify = "left"
    rows = [("decode, flat routing", predicted.flat, limits["flat"])]
    rows.append(("decode, skewed", predicted.skewed, limits["skewed"]))
    if predicted.drafted:
        rows.append((f"decode, skewed, drafts: {predicted.drafts}", predicted.drafted, 0.0))
    rows += [(f"prompt of {tokens:,}", which, limits[tokens]) for tokens, which in predicted.prompts.items()]
    for name, which, limit in rows:
        most = which.limit
        found = ("" if name.startswith("prompt") else f"{which.hit_rate:.0%}",) if plan.cards else ()
        table.add_row(
            name,
            Text(speed(which.rate), "bold"),
            Text(speed(limit) if limit else "", "dim"),
            time(which.seconds),
            *found,
            f"{most.name}, {(most.seconds - most.hidden) / which.seconds:.0%}",
        )
    return table


def _terms(console: Console, plan: Plan) -> None:
    assert plan.speed is not None
    prompts = plan.speed.prompts
    longest = max(prompts)
    parts = (("decode, flat routing", plan.speed.flat), ("decode, skewed", plan.speed.skewed))
    for name, which in (*parts, (f"prompt of {longest:,}", prompts[longest])):
        table = plain_table(name, "takes", "shows", "why")
        table.columns[-1].justify = "left"
        for term in which.terms:
            visible = term.seconds - term.hidden
            table.add_row(term.name, time(term.seconds), time(visible) if visible > 1e-9 else "hidden", term.why)
        table.add_row("together", "", Text(time(which.seconds), "bold"), f"{speed(which.rate)} tok/s")
        console.print(table)
        console.print()


def _footnote(machine: Machine, plan: Plan) -> str:
    assert plan.speed is not None
    when = f"measured {machine.measured[:10]}" if machine.measured else "not measured"
    text = f"Rates of this machine, {when}; limit: each part as fast as alone, nothing lost where they meet."
    if plan.cards:
        text += " Hits: experts found in VRAM."
    if plan.speed.drafted:
        text += " Drafts: as many right as the small model's draft layer gets in prose."
    return " ".join([text, *machine.notes])
