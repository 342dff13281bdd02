"""Where Hopper's tensor cores look for factors in shared memory: the machine code's places held against the PTX's.

The assembler of Triton 3.6 (ptxas 12.8) has been seen to build the descriptors of later steps of a product of narrow
tiles from another register than the PTX says, so that the product is of other memory. Both sides are evaluated for the
first thread, as far as they depend on nothing but constants; what depends on a loop is left out.
"""

from __future__ import annotations

import operator
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import triton

BASE = 0x400  # where a program's shared memory begins on Hopper
LOW, WHOLE = (1 << 32) - 1, (1 << 64) - 1
Number = int | None
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "or": operator.or_, "and": operator.and_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift,
}  # fmt: skip


class Ptx:
    """Values of the registers of a kernel in PTX."""

    def __init__(self, text: str) -> None:
        found = re.findall(r"^\s*([a-z]+)\.(\S+)\s+(%\w+), ([^;{}]*);", text, re.M)
        writes = [register for _, _, register, _ in found]
        self._made = {r: (op, kind, args.split(", ")) for op, kind, r, args in found if writes.count(r) == 1}
        self._known: dict[str, Number] = {}

    def value(self, name: str) -> Number:
        if name == "global_smem":
            return BASE
        if re.fullmatch(r"-?\d+", name):
            return int(name) & WHOLE
        if name not in self._known:
            self._known[name] = None  # what depends on itself is not known
            self._known[name] = self._computed(*self._made[name]) if name in self._made else None
        return self._known[name]

    def _computed(self, op: str, kind: str, args: list[str]) -> Number:
        values = [self.value(arg) for arg in args]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            return None
        if op in ("mov", "cvt"):
            return known[0]
        if op == "bfe":
            return known[0] >> known[1] & (1 << known[2]) - 1
        return ARITHMETIC[op](*known) & (WHOLE if kind.endswith("64") else LOW) if op in ARITHMETIC else None


def of_ptx(text: str) -> list[tuple[Number, ...]]:
    """The descriptors of each product in its order: of the left factor, if it lies there, and of the right."""
    registers = Ptx(text)
    products = re.findall(r"^\s*wgmma\.mma_async\S* \{[^}]*\}, (?:\{[^}]*\}, )?(%rd\d+), (%rd\d+)?", text, re.M)
    return [tuple(registers.value(name) for name in names if name) for names in products]


class Uniform:
    """Values of a warp's uniform registers while a kernel's machine code is read from its top."""

    def __init__(self) -> None:
        self._registers: dict[str, Number] = {"URZ": 0}
        self._carries: dict[str, Number] = {}

    def value(self, name: str) -> Number:
        if re.fullmatch(r"-?0x[0-9a-f]+", name):
            return int(name, 0) & LOW
        return self._registers.get(name)

    def pair(self, first: int) -> Number:
        low, high = self.value(f"UR{first}"), self.value(f"UR{first + 1}")
        return None if low is None or high is None else low | high << 32

    def read(self, line: str) -> None:
        """An instruction that may write a register."""
        op, _, rest = line.partition(" ")
        to, *args = rest.split(", ")
        if not re.fullmatch(r"UR\d+", to):
            return
        if op.endswith(".64"):
            of, both = args[0], None
            if op == "UIADD3.64" and of.startswith("UR") and of != "URZ":
                left, right = self.pair(int(of[2:])), self.value(args[1])
                both = None if left is None or right is None or args[1].startswith("UR") else left + right & WHOLE
            low, high = (None, None) if both is None else (both & LOW, both >> 32)
            self._registers[to], self._registers[f"UR{int(to[2:]) + 1}"] = low, high
        elif line.startswith(("UIADD3 ", "UIADD3.X ")):
            self._registers[to] = self._sum(args, op == "UIADD3.X")
        else:
            self._registers[to] = self._computed(op, args)

    def _sum(self, args: list[str], carried: bool) -> Number:
        terms = [self.value(arg) for arg in args if "UP" not in arg]
        if carried:
            terms += [self._carries.get(arg) for arg in args if re.fullmatch(r"UP\d", arg)]
        total = sum(terms) if None not in terms else None  # type: ignore[arg-type]
        if not carried and re.fullmatch(r"UP\d", args[0]):
            self._carries[args[0]] = None if total is None else total >> 32
        return None if total is None else total & LOW

    def _computed(self, op: str, args: list[str]) -> Number:
        if op == "S2UR":  # the program's place in its cluster
            return 0
        values = [self.value(arg) for arg in args if "UP" not in arg]
        known = [v for v in values if v is not None]
        if not known or len(known) < len(values):
            return None
        if op == "UMOV":
            return known[0]
        if op == "USHF.R.U32.HI":
            return known[2] >> known[1]
        if op == "USGXT.U32":
            return known[0] & (1 << known[1]) - 1
        if op == "ULEA":
            return (known[0] << known[2]) + known[1] & LOW
        return None


def of_machine_code(lines: Iterator[str]) -> list[tuple[Number, ...]]:
    """The same of a kernel's instructions."""
    registers, found = Uniform(), list[tuple[Number, ...]]()
    for line in lines:
        if not line.startswith("HGMMA"):
            registers.read(line)
            continue
        [first] = map(int, re.findall(r"gdesc\[UR(\d+)\]", line))
        left = () if re.match(r"HGMMA\S* R\d+, R\d+", line) else (registers.pair(first),)
        found.append((*left, registers.pair(first + 2)))
    return found


def check_descriptors(ptx: str, cubin: Path) -> None:
    """Raises ValueError where a product's factors are not where the PTX says."""
    wanted = of_ptx(ptx)
    if not wanted:
        return
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    text = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
    found = of_machine_code(iter(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text, re.M)))
    if len(wanted) != len(found):  # a loop was unrolled, or some products are left out
        return
    for number, (want, got) in enumerate(zip(wanted, found, strict=True)):
        for one, other in zip(want, got, strict=True):
            if one is not None and other is not None and one != other:
                raise ValueError(f"product {number} of {len(wanted)} reads at {other:#x}, not at {one:#x}")
