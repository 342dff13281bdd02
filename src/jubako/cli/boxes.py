"""Bars and tables of what lies in which box; used by `plan`, `check` and by errors that say what would fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..place.plan import Box
from ..place.sizes import size_text as size

COLOURS = {
    "dense weights": "cyan",
    "experts": "magenta",
    "n-gram table": "blue",
    "keys and values": "green",
    "states": "bright_green",
    "prompt ring": "yellow",
    "work space": "bright_black",
    "process": "bright_black",
}
FULL, FREE = "█", "░"
NAME_WIDTH = 8


def bars(boxes: Sequence[Box], width: int) -> Group:
    """A bar per box, and below it what its colours stand for."""
    shown = [box for box in boxes if box.limit > 0]
    return Group(*(line for box in shown for line in (_bar(box, width), _legend(box, width))))


def _bar(box: Box, width: int) -> Text:
    """One box: its parts in their colours, what is free in grey, and the sums."""
    sums = f" {size(box.used)} of {size(box.limit)}"
    length = max(min(width - NAME_WIDTH - len(sums), 72), 8)
    text = Text(f"{box.name:<{NAME_WIDTH}}", "bold")
    whole = max(box.limit, box.used, 1)
    done = drawn = 0
    for part in box.parts:
        done += part.bytes
        end = round(length * done / whole)
        end = max(end, drawn + 1) if part.bytes and drawn < length else end
        text.append(FULL * (end - drawn), COLOURS.get(part.name, "white"))
        drawn = max(end, drawn)
    text.append(FREE * (length - drawn), "bright_black")
    text.append(sums, "bold red" if box.headroom < 0 else "default")
    return text


def _legend(box: Box, width: int) -> Text:
    """What the colours stand for, broken between entries."""
    entries = [(part.name, size(part.bytes), COLOURS.get(part.name, "white")) for part in box.parts if part.bytes]
    text, column = Text(" " * NAME_WIDTH), NAME_WIDTH
    for name, amount, colour in (*entries, ("free", size(max(box.headroom, 0)), "bright_black")):
        length = len(name) + len(amount) + 6
        if column > NAME_WIDTH and column + length - 3 > width:
            text.append("\n" + " " * NAME_WIDTH)
            column = NAME_WIDTH
        text.append("■ ", colour).append(f"{name} {amount}   ")
        column += length
    text.rstrip()
    return text


def speed(rate: float) -> str:
    """Tokens/s with the digits that mean something: 1,234, 61.4, 1.7."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.1f}"


def time(seconds: float) -> str:
    """12.3 ms, 4.5 s, 2 min."""
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def plain_table(*headings: str) -> Table:
    """A table without lines, its first column to the left."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number == 0)
    return table
