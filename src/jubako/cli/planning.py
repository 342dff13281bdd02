"""The options of `probe`, `plan`, `check` and `pull`; each imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..place.plan import Wish

Vram = Annotated[str | None, typer.Option(metavar="SIZE", help="Video memory to use at most, of each card: 12G.")]
Ram = Annotated[str | None, typer.Option(metavar="SIZE", help="Main memory to use at most: 24G, 1.5TiB.")]
Context = Annotated[int | None, typer.Option(min=64, help="Tokens of context; by default what the model allows.")]
Sequences = Annotated[int, typer.Option(min=1, max=16, help="Answers at a time.")]
Gpus = Annotated[
    str | None, typer.Option(metavar="0,1", help="GPUs to use, by number, or none; by default all that help.")
]
KvBits = Annotated[int, typer.Option(help="Bits of a cached key or value: 8 or 16.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default one per physical core.")]
Machine = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Plan for another machine: what its `probe --json` printed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: jubako probe /models --json > machine.json")(probe)
    app.command(
        epilog="Exit code: 0 fits, 3 tight, 1 does not fit. Example: jubako plan model.gguf --vram 12G --ram 64G"
    )(plan)
    app.command(epilog="Exit code: 0 if one fits, 3 if only tightly, 1 if none. Example: jubako check --ram 48G")(check)
    app.command(epilog="Example: jubako pull UD-IQ3_XXS --to /models")(pull)


def probe(
    place: Annotated[Path | None, typer.Argument(help="Where models lie: its disk is measured. Default: here.")] = None,
    json: Json = False,
) -> None:
    """Measure what this machine can do, once, in about half a minute: `plan` and `check` reckon with it."""
    from .probe import probe as command

    command(place or Path.cwd(), json)


def plan(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Model file, then overrides, draft layer, side files.")
    ] = None,
    like: Annotated[str | None, typer.Option(metavar="NAME", help="A published model instead: see check.")] = None,
    context: Context = None,
    vram: Vram = None,
    ram: Ram = None,
    slots: Annotated[int | None, typer.Option(min=0, help="Experts of each layer in VRAM, at most.")] = None,
    sequences: Sequences = 1,
    gpus: Gpus = None,
    kv_bits: KvBits = 8,
    threads: Threads = None,
    machine: Machine = None,
    terms: Annotated[bool, typer.Option("--terms/--no-terms", help="Show what the times are made of.")] = True,
    json: Json = False,
) -> None:
    """Show what would go where and how fast it would run, before anything is loaded."""
    from .plan import plan as command

    wish = _wish(context, vram, ram, slots, sequences, gpus, kv_bits, threads)
    raise typer.Exit(command(files or [], like, wish, machine, json, terms))


def check(
    context: Context = None,
    vram: Vram = None,
    ram: Ram = None,
    sequences: Sequences = 1,
    gpus: Gpus = None,
    kv_bits: KvBits = 8,
    machine: Machine = None,
    json: Json = False,
) -> None:
    """Say of every known published model whether it fits here, how fast it would be, and why."""
    from .check import check as command

    wish = _wish(context, vram, ram, None, sequences, gpus, kv_bits, None)
    raise typer.Exit(command(wish, machine, json))


def pull(
    name: Annotated[str, typer.Argument(help="A name that check lists, or owner/repository[:pattern].")],
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to; by default here.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="The draft layer's file too.")] = True,
    anyway: Annotated[bool, typer.Option("--anyway", help="Even if it does not fit this machine.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
) -> None:
    """Fetch a model: resumed where it broke off, checksummed, free disk checked first; HF_ENDPOINT names a mirror."""
    from .pull import pull as command

    command(name, to or Path.cwd(), revision, draft, dry_run, anyway)


def _wish(
    context: int | None,
    vram: str | None,
    ram: str | None,
    slots: int | None,
    sequences: int,
    gpus: str | None,
    kv_bits: int,
    threads: int | None,
) -> Wish:
    from ..errors import RequestError
    from ..place.plan import Wish
    from ..place.sizes import parse_size

    if kv_bits not in (8, 16):
        raise RequestError(f"--kv-bits is {kv_bits}; it can be 8 or 16")
    return Wish(
        context=context,
        vram=None if vram is None else parse_size(vram, "--vram"),
        ram=None if ram is None else parse_size(ram, "--ram"),
        slots=slots,
        sequences=sequences,
        gpus=_numbers(gpus),
        kv_bits=kv_bits,
        threads=threads,
    )


def _numbers(gpus: str | None) -> tuple[int, ...] | None:
    """ "0,1" or "none". Raises RequestError for anything else."""
    from ..errors import RequestError

    if gpus is None or gpus == "none":
        return None if gpus is None else ()
    parts = [part.strip() for part in gpus.split(",")]
    if not all(part.isdecimal() and len(part) < 4 for part in parts):
        raise RequestError(f"--gpus is {gpus!r:.50}; it can be numbers such as 0,1, or none")
    return tuple(dict.fromkeys(int(part) for part in parts))
