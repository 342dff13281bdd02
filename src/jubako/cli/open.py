"""Opening a model for a command, with a sign of life, and the small model that stands in when none is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ..errors import RequestError
from ..place.plan import Wish
from .fitting import look_ahead

if TYPE_CHECKING:
    from ..engine.model import Model

NOTE = "No model named (-m FILE): using Jubako Small, a very small model for trying Jubako (docs/model-card.md)."


def small_model() -> list[Path]:
    """The files of the model that ships with Jubako, trunk and draft layer, used when none is named.

    Raises RequestError where they were left out.
    """
    folder = Path(__file__).parents[1] / "models"
    files = [folder / "jubako-small.gguf", folder / "jubako-small-mtp.gguf"]
    if not all(file.exists() for file in files):
        raise RequestError("no model: name a file with -m FILE")
    return files


def open_with_status(
    files: list[Path] | None,
    device: str,
    threads: int | None,
    kv_bits: int,
    context: int | None,
    ram: int | None,
    gpus: tuple[int, ...] | None,
    vram: int | None,
    split: str,
) -> Model:
    """Load the files (or the small model), showing on standard error what is being done."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from ..engine.model import load

    console = Console(stderr=True)
    if not files:
        files = small_model()
        console.print(NOTE, style="dim")
    wish = Wish(context=context, vram=vram, ram=ram, gpus=gpus, kv_bits=kv_bits, threads=threads)
    if line := look_ahead(files, device, wish):
        console.print(line, style="dim", highlight=False)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Loading {files[0].name} …", total=None)

        def read(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return load(
            files,
            device,
            threads=threads,
            kv_bits=kv_bits,
            context=context,
            ram=ram,
            gpus=gpus,
            vram=vram,
            split=split,
            progress=read,
        )
