"""What a kernel touches before it waits for the launches in front of it, found in its PTX.

A launch may begin when all programs of the one before have released it or ended. So a run of them may be under way
while an early one still writes, and before its `wait` a kernel may only read what none of them writes: weights, and
what is listed here with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# By kernel the pointers that are read early. Weights are written by nobody while steps run.
READ = {
    "tile_kernel": {"base", "second_base", "passes"},
    "linear_kernel": {"first_base", "second_base"},
    "router_kernel": {"base"},
    "square_kernel": {"gamma"},
    "long_kernel": {"down", "add"},
    "gate_kernel": {"up", "gamma"},
    "long_part_kernel": {"down", "add", "gamma"},
    "tile_gate_kernel": {"up", "gamma"},
    "gate_up_kernel": {"shared"},
    # slots, weights, share: `gate_up_kernel`, which comes before, begins to release when the router's choice is there
    "down_kernel": {"shared", "pool", "slots"},
    "sum_down_kernel": {"shared", "pool", "slots", "weights", "share", "passes", "notes"},
    # passes: counted before a step's first launches, which wait for that
    "sum_kernel": {"passes"},
    # parts, slots, positions: of the step's table, see SHUT; pages, cells: no step writes them; the others are weights,
    # or a layer's own, and rest since the step before
    "_gdn_columns": {
        "parts", "memory", "past_k", "past_u", "past_decay", "conv", "taps", "dt_bias", "a", "norm",
    },
    "_prepare": {
        "slots", "positions", "pages", "cells", "raw", "frequencies", "q_gamma", "k_gamma", "index_q_gamma",
        "index_k_gamma",
    },
    "_score_columns": {"parts"},
    "_choose_columns": {"positions"},
    "attend_bytes": {"slots", "positions", "pages"},
    "_merge": {"positions"},
}  # fmt: skip
WRITTEN = {"_gdn_columns": {"memory"}}  # what is early entered into the state is what the step before left for it
SHUT = {"_take", "_take_new"}  # release nothing: what reads a step's table early comes after them
LATE = {"decode_kernel", "gate_up_kernel"}  # release when they have waited: what came before is complete then

REGISTER = r"%[a-z]+\d+"
MEMORY = ("ld", "st", "atom", "red", "cp")
ELSEWHERE = (".param", ".shared", ".local", ".const", "cp.async")


@dataclass(frozen=True)
class Line:
    """An instruction: its operation, the registers it writes and reads, those of these that make an address, the label
    it jumps to, whether that depends."""

    op: str
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    address: tuple[str, ...]
    target: str
    depends: bool


@dataclass(frozen=True)
class Early:
    """Pointers that a program may read and write before it has waited, by their names; whether it releases before."""

    reads: set[str]
    writes: set[str]
    releases: bool


def lines_of(ptx: str) -> Iterator[Line | str]:
    """The instructions of a kernel, and its labels as text."""
    body = ptx[ptx.index(".entry") :]
    body = body[body.index("\n{") + 2 : body.rindex("}")]
    body = re.sub(r"//[^\n]*|^\s*\.(loc|file|pragma|reg)\b[^\n]*", "", body, flags=re.M)
    for raw in re.split(r";|(?<=:)\s|\n(?=\$\w+:)", body):
        text = raw.strip(" \t\n{}")
        if re.fullmatch(r"\$\w+:", text):
            yield text[:-1]
        found = re.match(r"(@!?%?\w+\s+)?([a-z][\w.:]*)\s*(.*)", raw.strip(" \t\n").lstrip("{ \t\n"), re.S)
        if found and not text.endswith(":"):
            yield line_of(found[2], found[3], found[1] is not None)


def line_of(op: str, rest: str, depends: bool) -> Line:
    """An instruction whose operands are `rest`."""
    registers = re.findall(REGISTER, rest)
    first = re.match(rf"\{{[^}}]*\}}|{REGISTER}(\|{REGISTER})?", rest)
    writes = re.findall(REGISTER, first[0]) if first and not op.startswith(("st.", "red.", "bra", "bar")) else []
    brackets = re.findall(r"\[([^\]]*)\]", rest)  # what a copy reads comes last
    label = re.search(r"\$\w+", rest) if op.startswith("bra") else None
    places = tuple(re.findall(REGISTER, brackets[-1])) if brackets else ()
    return Line(op, tuple(writes), tuple(registers[len(writes) :]), places, label[0] if label else "", depends)


def origins(lines: Sequence[Line | str], ptx: str, names: Sequence[str]) -> dict[str, set[str]]:
    """Of each register the pointers that a number in it may come from, "" for the compiler's own tables; what lies in
    memory comes from none."""
    loads = re.findall(r"ld\.param\.\w+\s+(%rd\d+), \[\w+_param_(\d+)\]", ptx)
    tables = re.findall(r"mov\.\w+\s+(%rd\d+), [A-Za-z_]\w*;", ptx)
    of = {register: {names[int(place)]} for register, place in loads if int(place) < len(names) and names[int(place)]}
    of.update((register, {""}) for register in tables)
    changed = True
    while changed:
        changed = False
        for line in lines:
            if isinstance(line, str) or line.op.startswith(("ld", "atom", "setp")):
                continue
            sources = set[str]().union(*(of.get(register, set()) for register in line.reads))
            for register in line.writes:
                if not sources <= of.get(register, set()):
                    of.setdefault(register, set()).update(sources)
                    changed = True
    return of


def early(ptx: str, names: Sequence[str]) -> Early:
    """names: of the kernel's parameters in PTX, "" for those that are no pointers."""
    lines = list(lines_of(ptx))
    of = origins(lines, ptx, names)
    places = {line: place for place, line in enumerate(lines) if isinstance(line, str)}
    found = Early(set(), set(), False)
    seen, todo = set[int](), [0]
    while todo:
        place = todo.pop()
        if place in seen or place >= len(lines):
            continue
        seen.add(place)
        line = lines[place]
        if isinstance(line, str):
            todo.append(place + 1)
            continue
        kind = line.op.split(".")[0]
        if line.op == "griddepcontrol.launch_dependents":
            found = Early(found.reads, found.writes, True)
        elif kind in MEMORY and (".shared.global" in line.op or not any(space in line.op for space in ELSEWHERE)):
            touched = set[str]().union(*(of.get(register, set()) for register in line.address)) or {"?"}
            (found.reads if kind in ("ld", "cp") else found.writes).update(touched - {""})
        if line.target:
            todo.append(places[line.target])
        ends = line.op.startswith(("ret", "exit", "bra"))
        if line.op != "griddepcontrol.wait" and not (ends and not line.depends):
            todo.append(place + 1)
    return found


def check_early(ptx: str, kernel: str, names: Sequence[str]) -> None:
    """Raises ValueError where a kernel that may begin early reads, writes or releases sooner than it may."""
    if "griddepcontrol.wait" not in ptx:
        raise ValueError(f"{kernel} may begin early and never waits")
    if kernel in SHUT and "griddepcontrol.launch_dependents" in ptx:
        raise ValueError(f"{kernel} releases the next launch before it has ended")
    found = early(ptx, names)
    if kernel in LATE and found.releases:
        raise ValueError(f"{kernel} releases the next launch before it has waited")
    for what, did, may in (("reads", found.reads, READ), ("writes", found.writes, WRITTEN)):
        if not did <= may.get(kernel, set()):
            raise ValueError(f"{kernel} {what} {', '.join(sorted(did - may.get(kernel, set())))} before it waits")
