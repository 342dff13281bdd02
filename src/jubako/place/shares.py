"""What plans with and without a GPU share: limits, the context, experts spread over layers, the SSD's part."""

from __future__ import annotations

from .census import Census
from .machine import Machine
from .memory import KEEP_FREE
from .plan import Box, Part, Wish

PAGE = 64  # tokens
USUAL_CONTEXT = 65_536  # tokens, where nobody asks for so many and experts would have to give way for more
PREFIX_SHARE, PREFIX_MOST = 8, 8 << 30  # of the RAM that is left, for kept states


class Short(Exception):
    """What a box lacks, as a sentence without its full stop."""


def ram_limit(machine: Machine, wish: Wish) -> int:
    """Bytes of main memory that may be used: what was asked for, never what is not free, never the last tenth."""
    usable = max(machine.ram_free - machine.ram_limit // KEEP_FREE, 0)
    return usable if wish.ram is None else min(usable, wish.ram)


def context_of(census: Census, wish: Wish, room: int, where: str) -> tuple[int, tuple[str, ...]]:
    """Tokens of context, and a note where fewer than wanted fit in the `room` tokens."""
    own = census.config.context_length
    wanted = min(wish.context or own, own)
    if wanted <= room:
        return wanted, ()
    held = max(room // PAGE * PAGE, PAGE)
    return held, (f"{where[:1].upper()}{where[1:]} has room for {held:,} of {wanted:,} tokens of context.",)


def spread(census: Census, budget: int) -> tuple[int, ...]:
    """Experts of each layer that so many bytes of RAM hold, the same number everywhere."""
    count = min(census.config.experts, budget // sum(shape.record for shape in census.experts))
    return (count,) * len(census.experts)


def prefix_budget(left: int) -> int:
    """Bytes for kept states, of what else leaves of the RAM."""
    return max(min(left // PREFIX_SHARE, PREFIX_MOST), 0)


def ssd_box(census: Census, machine: Machine, experts: int) -> Box:
    """The n-gram table, which is always read by row, and experts that RAM has no room for."""
    parts = (Part("n-gram table", census.table), Part("experts", experts))
    return Box("SSD", max(machine.disk.free, census.table + experts), parts)
