"""Whether a barrier lies between what lanes leave in shared memory by hand (`ops/gpu/room.py`) and where it is found.

The compiler knows nothing of that memory, so nothing but the order of instructions keeps both apart.
"""

from __future__ import annotations

import re

ROOM = re.compile(r"\.shared \.align 16 \.b32 room\[")
# columns' answers have words of their own, which are found behind the barrier after the last
APART = {"_gdn_columns"}
TURNS = re.compile(r"\bbar\.(sync|arrive) %r\d+, 64;")  # of warps that go on one after another (`ops/gpu/turns.py`)
STEPS = re.compile(r"\b(?:(st\.shared)|(ld\.shared)|(bar\.sync|barrier\.sync))\b")


def check_rooms(ptx: str, name: str) -> None:
    """Refuse a kernel with a room that reads shared memory behind a write with no barrier in between, or that waits for
    more turns than it takes: where the compiler makes copies of one, programs never end."""
    turns = TURNS.findall(ptx)
    if turns.count("sync") != turns.count("arrive"):
        raise RuntimeError(f"{name}: warps wait for {turns.count('sync')} turns and take {turns.count('arrive')}")
    if not ROOM.search(ptx) or name in APART:
        return
    left = False
    for step in STEPS.finditer(ptx):
        if step[2] and left:
            raise RuntimeError(f"{name}: words are looked for in shared memory before all lanes have left theirs")
        left = step[1] is not None or (left and step[3] is None)
