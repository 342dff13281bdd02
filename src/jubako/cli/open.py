"""Opening a model for a command, with a sign of life, and the small model that stands in when none is named."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..engine.model import Model, load
from ..errors import RequestError

NOTE = (
    "No model named (-m FILE): using the tiny random network of the test data. "
    "It shows that all works; its text means nothing."
)


def small_model() -> Path:
    """The model used when none is named. Raises RequestError outside a checkout of the project."""
    path = Path(__file__).parents[3] / "tests" / "data" / "tiny" / "tiny-bf16.gguf"
    if not path.exists():
        raise RequestError("no model: name a file with -m FILE")
    return path


def open_with_status(
    files: list[Path] | None, device: str, threads: int | None, kv_bits: int, context: int | None
) -> Model:
    """Load the files (or the small model), showing on standard error what is being done."""
    console = Console(stderr=True)
    if not files:
        files = [small_model()]
        console.print(NOTE, style="dim")
    with console.status(f"Loading {files[0].name} …"):
        return load(files, device, threads=threads, kv_bits=kv_bits, context=context)
