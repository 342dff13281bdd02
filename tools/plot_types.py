#!/usr/bin/env python3
"""Draw the table that `compare_peer.py --types` prints: decode and prompt speed of both engines, by block type.

    python tools/plot_types.py docs/performance/cpu-types.md docs/performance/cpu-types.svg

Needs matplotlib.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt


def rows_of(table: str) -> list[tuple[str, list[float]]]:
    """(block type, [decode ours, peer, prefill ours, peer]) of every row that has all four numbers."""
    rows = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        try:
            rows.append((cells[0], [float(cells[i]) for i in (1, 2, 4, 5)]))
        except (ValueError, IndexError):
            continue
    return rows


def draw(rows: list[tuple[str, list[float]]], out: Path) -> None:
    """Two panels of paired bars, tokens per second."""
    plt.rcParams["svg.hashsalt"] = "jubako"  # the same table gives the same file
    figure, panels = plt.subplots(1, 2, figsize=(9, 0.26 * len(rows) + 1.2), sharey=True)
    places = range(len(rows))
    for panel, title, first in zip(panels, ("decode", "prompt"), (0, 2), strict=True):
        panel.barh([y - 0.2 for y in places], [row[1][first] for row in rows], 0.4, label="Jubako", color="#b5382a")
        panel.barh([y + 0.2 for y in places], [row[1][first + 1] for row in rows], 0.4, label="llama.cpp", color="#888")
        panel.set_title(f"{title}, tokens/s")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(list(places), [row[0] for row in rows])
    panels[0].invert_yaxis()
    panels[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(rows_of(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
