"""Draw the curves of a training log as one SVG: running means of the losses over millions of tokens.

python -m tools.train.curves docs/small-model/training.tsv docs/small-model/curves.svg
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BELOW = 760, 360, 50, 40
TOKENS_PER_STEP = 16 * 4096
SERIES = {"token_loss": "#1f77b4", "draft1": "#ff7f0e", "draft3": "#d62728", "index_recall": "#2ca02c"}
TOP = 5.0  # of the scale


def running(values: list[float], span: int = 9) -> list[float]:
    """Means over the last `span` values."""
    return [sum(values[max(0, at - span + 1) : at + 1]) / min(span, at + 1) for at in range(len(values))]


def draw(log: Path, target: Path) -> None:
    with log.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    millions = [int(row["step"]) * TOKENS_PER_STEP / 1e6 for row in rows]
    across, up = (WIDTH - LEFT - 10) / millions[-1], (HEIGHT - BELOW - 10) / TOP
    base = HEIGHT - BELOW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for level in range(int(TOP) + 1):
        y = base - level * up
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 20}" y="{y + 4:.0f}" font-size="12">{level}</text>')
    for mark in range(0, int(millions[-1]) + 1, 50):
        parts.append(f'<text x="{LEFT + mark * across - 8:.0f}" y="{base + 18}" font-size="12">{mark}</text>')
    parts.append(f'<text x="{WIDTH // 2 - 60}" y="{HEIGHT - 6}" font-size="12">million tokens</text>')
    for number, (name, colour) in enumerate(SERIES.items()):
        values = running([float(row[name]) for row in rows])
        places = " ".join(
            f"{LEFT + x * across:.1f},{base - min(y, TOP) * up:.1f}" for x, y in zip(millions, values, strict=True)
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{WIDTH - 140}" y="{30 + 16 * number}" font-size="12" fill="{colour}">{name}</text>')
    target.write_text("\n".join([*parts, "</svg>\n"]))


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
