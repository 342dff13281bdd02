"""What the tests of plans share: a machine of round figures, one that was measured, published models."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from jubako.measure.like import like
from jubako.place.census import Census, take_census
from jubako.place.known import find
from jubako.place.machine import CardRates, Disk, Identity, Kernel, Machine, Together

DATA = Path(__file__).parents[1] / "data" / "machines"
KINDS = ("IQ3_XXS", "IQ2_S", "IQ4_NL", "Q8_0", "F32", "Q4_K", "Q5_K", "Q5_1")
CARD = CardRates("card", 100 * 10**9, 99 * 10**9, 1e12, 0.9e12, 50e9, 40e9, 10e-6, 40e9, 1e-6, 100e12)


def measured() -> Machine:
    """One H200, 16 cores: what `jubako probe --json` printed there."""
    return Machine.from_json(json.loads((DATA / "h200.json").read_text()))


def machine(cards: int = 0, ram: float = 200e9) -> Machine:
    """CPU kernels at 50 GB/s and 500 G multiply-adds/s on 8 cores, RAM 100 GB/s, SSD 2 GB/s; a card as above."""
    kernel = Kernel({1: 10e9, 8: 50e9}, 50e9, 500e9, 500e9)
    return Machine(
        identity=Identity("cpu", 8, int(ram), "1", ("card",) * cards),
        ram_free=int(ram),
        ram_limit=int(ram),
        ram_read={1: 20e9, 8: 100e9},
        isa="avx2",
        kernels=dict.fromkeys(KINDS, kernel),
        call=1e-6,
        disk=Disk("/", 2e9, 100_000, 1e-4, True, 10**12),
        cards=(CARD,) * cards,
        together=Together(30e9, 40e9) if cards else None,
        measured="2026-11-30",
    )


@lru_cache(maxsize=4)
def census(name: str = "UD-IQ3_XXS", draft: bool = True) -> Census:
    """A published model's; without its draft layer if so wanted."""
    known = find(name)
    return take_census(like(known if draft else replace(known, draft="")))
