"""Draw the curves of the small model's training as SVG.

    python -m tools.train.curves docs/small-model

Reads training.tsv (running means of the losses over millions of tokens) and kept.tsv (shares of drafts kept while the
draft layer was tuned); writes curves.svg and kept.svg.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, LEFT, BELOW = 760, 360, 50, 40
COLOURS = ("#1f77b4", "#ff7f0e", "#d62728", "#2ca02c")
TOKENS_PER_STEP = 16 * 4096


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]


def running(values: list[float], span: int = 9) -> list[float]:
    """Means over the last `span` values."""
    return [sum(values[max(0, at - span + 1) : at + 1]) / min(span, at + 1) for at in range(len(values))]


def rows_of(log: Path) -> list[dict[str, str]]:
    with log.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def losses(log: Path) -> list[Curve]:
    rows = rows_of(log)
    millions = [int(row["step"]) * TOKENS_PER_STEP / 1e6 for row in rows]
    names = ("token_loss", "draft1", "draft3", "index_recall")
    return [Curve(name, millions, running([float(row[name]) for row in rows])) for name in names]


def kept(log: Path) -> list[Curve]:
    rows = rows_of(log)
    return [
        Curve(kind, [float(row["step"]) for row in own], [float(row["kept"]) for row in own])
        for kind in dict.fromkeys(row["kind"] for row in rows)
        if (own := [row for row in rows if row["kind"] == kind])
    ]


def draw(curves: list[Curve], levels: Sequence[float], every: int, unit: str) -> str:
    """An SVG: lines at `levels` upwards, marks at `every` so many units along."""
    last = max(curve.x[-1] for curve in curves)
    low, high = levels[0], levels[-1]
    across, up, base = (WIDTH - LEFT - 10) / last, (HEIGHT - BELOW - 10) / (high - low), HEIGHT - BELOW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for level in levels:
        y = base - (level - low) * up
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 26}" y="{y + 4:.0f}" font-size="12">{level:g}</text>')
    for mark in range(0, int(last) + 1, every):
        parts.append(f'<text x="{LEFT + mark * across - 8:.0f}" y="{base + 18}" font-size="12">{mark}</text>')
    parts.append(f'<text x="{WIDTH // 2 - 60}" y="{HEIGHT - 6}" font-size="12">{unit}</text>')
    for number, (curve, colour) in enumerate(zip(curves, COLOURS, strict=True)):
        places = " ".join(
            f"{LEFT + x * across:.1f},{base - (min(y, high) - low) * up:.1f}"
            for x, y in zip(curve.x, curve.y, strict=True)
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = WIDTH - 140, 60 + 16 * number
        parts.append(f'<text x="{x}" y="{y}" font-size="12" fill="{colour}">{curve.name}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    figure = draw(losses(folder / "training.tsv"), range(6), 50, "million tokens")
    (folder / "curves.svg").write_text(figure)
    figure = draw(kept(folder / "kept.tsv"), (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 1000, "steps")
    (folder / "kept.svg").write_text(figure)
