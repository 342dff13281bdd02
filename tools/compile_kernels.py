"""Compiles the GPU kernels for every kind of card, with no GPU, and tells what registers and shared memory they take.

    python tools/compile_kernels.py [--targets cuda:90 hip:gfx1100 …] [--only NAME …] [--table FILE.md]

The engine's own functions run on small CPU tensors while launches are only recorded, so that kernels are compiled with
the signatures and constants that they are really launched with.
"""
# mypy: disable-error-code="misc"

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import draft_kernels
import state_kernels
from descriptors import check_descriptors
from early import check_early
from rooms import check_rooms

import jubako.ops.gpu.launch
from jubako import _cpu
from jubako.arch.tensor import Tensor
from jubako.ops.gpu import repack
from jubako.ops.gpu import target as targets
from jubako.ops.gpu.activation import room_for
from jubako.ops.gpu.away import Away, Mailbox
from jubako.ops.gpu.combine import hyper_combine
from jubako.ops.gpu.embed import decode
from jubako.ops.gpu.expert_step import gate_up, usual_cut
from jubako.ops.gpu.experts import Beside, Experts, Routed, add_up, parts_of
from jubako.ops.gpu.far_table import FarTable
from jubako.ops.gpu.foresight import foresee
from jubako.ops.gpu.hyper import HyperMix, experts_mix, hyper_mix, linear_mix
from jubako.ops.gpu.largest import find_largest
from jubako.ops.gpu.linear import linear
from jubako.ops.gpu.link import fetch_ahead, link_of
from jubako.ops.gpu.matrix import Matrix, has_tensor_cores
from jubako.ops.gpu.peer_exchange import Boxes, Mixture, Product, exchange, made
from jubako.ops.gpu.planar import LAYOUTS
from jubako.ops.gpu.route import argmax, route_experts
from jubako.ops.gpu.slots import Slots, SlotShape
from jubako.ops.gpu.tiles import PAIR, TILES, UNIT, fits, padded
from jubako.quant import BY_NAME

assert jubako.ops.gpu.launch
HIDDEN, STREAMS, RANK, SIZE, CHOSEN, EXPERTS = 2560, 4, 320, 640, 10, 16
TARGETS = (
    "cuda:70", "cuda:75", "cuda:80", "cuda:86", "cuda:89", "cuda:90", "cuda:120",
    "hip:gfx1030", "hip:gfx1100", "hip:gfx1201",
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A launch that was not made."""

    kernel: JITFunction
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]
    options: dict[str, Any]

    @property
    def pointers(self) -> list[str]:
        """Names of the parameters of the compiled kernel, "" where they are no pointers."""
        kinds = self.signature.items()
        return [name if kind.startswith("*") else "" for name, kind in kinds if kind != "constexpr"]


def described(kernel: JITFunction, args: tuple[Any, ...], named: dict[str, Any]) -> Recorded:
    """Signature, constants and alignments as Triton itself would find them."""
    values = dict(zip(kernel.arg_names, args, strict=False))
    options = {key: value for key, value in named.items() if key not in kernel.arg_names}
    values.update({key: value for key, value in named.items() if key in kernel.arg_names})
    constant = {p.name for p in kernel.params if p.is_constexpr}
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in constant:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, int) and value == 1 and name not in free:
            signature[name], constants[name] = "constexpr", 1
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + triton.runtime.jit.type_canonicalisation_dict[str(value.dtype).split(".")[-1]]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    return Recorded(kernel, signature, constants, attributes, options)


@contextmanager
def recording(properties: targets.Target) -> Iterator[list[Recorded]]:
    """Inside, launches are written down instead of made, as for a device with these properties."""
    launches: list[Recorded] = []
    run, find = JITFunction.run, targets._target

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append(described(self, args, named))

    JITFunction.run = record  # type: ignore[method-assign,assignment]
    targets._target = lambda kind, index: properties  # type: ignore[assignment]
    try:
        yield launches
    finally:
        JITFunction.run, targets._target = run, find  # type: ignore[method-assign]


def matrix(name: str, rows: int, cols: int, step: int = UNIT) -> Matrix:
    """As it lies on the target at hand."""
    if fits(BY_NAME[name], cols, step) and has_tensor_cores(torch.device("cpu"), BY_NAME[name]):
        tiled = TILES[name]
        return Matrix(torch.zeros(padded(rows) * tiled.row_bytes(cols), dtype=torch.uint8), tiled, rows, cols)
    return planes(name, rows, cols)


def planes(name: str, rows: int, cols: int) -> Matrix:
    return Matrix(torch.zeros(LAYOUTS[name].matrix_bytes(rows, cols), dtype=torch.uint8), BY_NAME[name], rows, cols)


def slots(gate: str, down: str, count: int) -> Slots:
    shape = SlotShape(BY_NAME[gate], BY_NAME[gate], BY_NAME[down], SIZE, HIDDEN, SIZE)
    return Slots(shape, torch.zeros(count, shape.bytes, dtype=torch.uint8), torch.arange(count, dtype=torch.int32))


def layer(gate: str = "IQ3_XXS", down: str = "IQ4_NL") -> Experts:
    return Experts((matrix("F32", EXPERTS + 1, HIDDEN),), slots(gate, down, EXPERTS), slots("Q8_0", "Q8_0", 1))


def routed(tokens: int) -> Routed:
    ids = torch.zeros(tokens, CHOSEN, dtype=torch.int32)
    return Routed(ids, torch.zeros(tokens, CHOSEN), torch.zeros(tokens), ids)


def added(tokens: int) -> None:
    """A product into the streams and the mix after it."""
    cpu = torch.device("cpu")
    streams, inject = torch.zeros(tokens, STREAMS, HIDDEN), torch.zeros(tokens, STREAMS)
    linear_mix(matrix("Q8_0", HIDDEN, 6144), room_for(tokens, 6144, True, cpu), streams, inject, mix())


def row_bytes(name: str, columns: int) -> int:
    return columns // BY_NAME[name].weights * BY_NAME[name].bytes


def far_rows() -> None:
    """A table of one row, which this file stands for."""
    raw = np.zeros((1, row_bytes("Q8_0", 64)), np.uint8)
    tensor = Tensor("table", BY_NAME["Q8_0"], (1, 64), raw, Path(__file__), 0)
    table = FarTable(tensor, _cpu.RowTable(_cpu.Reader([__file__], 1), 0, 0, raw.shape[1], 1), 4, torch.device("cpu"))
    table.ask(torch.zeros(4, dtype=torch.int64))
    table.take(4)


def mix(down: str = "Q8_0", up: str = "Q8_0") -> HyperMix:
    wide = STREAMS * HIDDEN
    return HyperMix(
        torch.zeros(wide),
        matrix(down, RANK, wide, PAIR),
        matrix(up, wide, RANK, PAIR),
        matrix("F32", 4, wide),
        STREAMS,
        1e-6,
    )


def mixed(tokens: int) -> None:
    streams, inject = torch.zeros(tokens, STREAMS, HIDDEN), torch.zeros(tokens, STREAMS)
    experts_mix(layer(), room_for(tokens, HIDDEN, False, streams.device), routed(tokens), streams, inject, mix())
    hyper_combine(streams, inject, torch.zeros(tokens, HIDDEN))


def absent(tokens: int) -> None:
    """What a step launches for experts that have no slot."""
    cpu, mine = torch.device("cpu"), layer()
    addresses = np.zeros((EXPERTS, 3), np.uint64)
    [link] = link_of(mine.routed.shape, [addresses], 0, cpu)
    away = Away(0, Mailbox.of(CHOSEN, HIDDEN, cpu), torch.zeros(EXPERTS, dtype=torch.int32), link)
    own, x = replace(mine, away=away), room_for(tokens, HIDDEN, False, cpu)
    parts_of(own, x, routed(tokens))
    parts_of(own, x, routed(tokens), beside=Beside(True, *[lambda: None] * 3))
    foresee(routed(tokens), own)
    fetch_ahead(link, mine.routed)


def exchanged(tokens: int) -> None:
    """What two cards that share a layer launch between its blocks."""
    inbox, outbox = (torch.zeros(2, 16, HIDDEN, dtype=torch.int64) for _ in range(2))
    boxes = Boxes(inbox, outbox, torch.zeros(1, dtype=torch.int32))
    product = Product(matrix("Q8_0", HIDDEN, 3072), room_for(tokens, 3072, True, inbox.device))
    for part in (product, Mixture(layer(), room_for(tokens, HIDDEN, False, inbox.device), routed(tokens))):
        exchange(*made(part, boxes.outbox_of(0)), boxes, 0)


def summed() -> None:
    """The sum of experts whose down products don't add up."""
    parts = parts_of(layer(down="F16"), room_for(1, HIDDEN, False, torch.device("cpu")), routed(1))
    assert not isinstance(parts, torch.Tensor)
    add_up(parts, torch.zeros(1, HIDDEN))


def families() -> dict[str, Callable[[], Any]]:
    """What is compiled: a name, and a call that launches it."""
    cpu = torch.device("cpu")
    named: dict[str, Callable[[], Any]] = {
        "product, 1 column": lambda: linear(matrix("Q8_0", 8192, HIDDEN), room_for(1, HIDDEN, True, cpu)),
        "product, 4 columns": lambda: linear(matrix("Q8_0", 8192, HIDDEN), room_for(4, HIDDEN, True, cpu)),
        "product, 4 columns of planes": lambda: linear(planes("Q4_K", 8192, HIDDEN), room_for(4, HIDDEN, True, cpu)),
        "product of Q4_K, 1 column": lambda: linear(matrix("Q4_K", 8192, HIDDEN), room_for(1, HIDDEN, True, cpu)),
        "product of Q6_K, 1 column": lambda: linear(matrix("Q6_K", 8192, HIDDEN), room_for(1, HIDDEN, True, cpu)),
        "product of few rows, 1 column": lambda: linear(matrix("Q8_0", HIDDEN, 6144), room_for(1, 6144, True, cpu)),
        "product of few rows of Q4_K, 1 column": lambda: linear(
            matrix("Q4_K", HIDDEN, 6144), room_for(1, 6144, True, cpu)
        ),
        "product of few rows of Q4_K, 4 columns": lambda: linear(
            matrix("Q4_K", HIDDEN, 6144), room_for(4, 6144, True, cpu)
        ),
        "product of Q6_K, 4 columns": lambda: linear(matrix("Q6_K", 8192, HIDDEN), room_for(4, HIDDEN, True, cpu)),
        "product of Q5_K, 4 columns": lambda: linear(matrix("Q5_K", 8192, HIDDEN), room_for(4, HIDDEN, True, cpu)),
        "product, 16 columns": lambda: linear(matrix("Q8_0", 8192, HIDDEN), room_for(16, HIDDEN, True, cpu)),
        "experts and mix": lambda: mixed(1),
        "mix, 4 columns": lambda: mixed(4),
        "mix of Q6_K": lambda: hyper_mix(torch.zeros(1, STREAMS, HIDDEN), mix("Q6_K")),
        "mix of Q5_K, 4 columns": lambda: hyper_mix(torch.zeros(4, STREAMS, HIDDEN), mix("Q5_K", "Q5_1")),
        "product and mix": lambda: added(1),
        "product and mix, 4 columns": lambda: added(4),
        "product and mix, 16 columns": lambda: added(16),
        "experts' sum": summed,
        "gate and up, 1 column": lambda: gate_up(layer(), room_for(1, HIDDEN, False, cpu), routed(1), usual_cut(1)),
        "experts of one bit": lambda: parts_of(layer("Q1_0"), room_for(1, HIDDEN, False, cpu), routed(1)),
        "route": lambda: route_experts(layer(), room_for(1, HIDDEN, True, cpu), CHOSEN),
        "rows from the disk": far_rows,
        "argmax": lambda: argmax(torch.zeros(1, 248320)),
        "largest": lambda: find_largest(
            torch.zeros(1, 248320), torch.zeros(1, 64, dtype=torch.int32), torch.zeros(1, 64)
        ),
        "exchange between cards": lambda: exchanged(1),
        "absent experts": lambda: absent(1),
        "absent experts, 4 columns": lambda: absent(4),
        "prompt: experts": lambda: parts_of(layer(), torch.zeros(32, HIDDEN), routed(32)),
        "prompt: mix": lambda: hyper_mix(torch.zeros(32, STREAMS, HIDDEN), mix()),
    }
    named |= state_kernels.families() | draft_kernels.families()
    for name in LAYOUTS:
        named[f"decoding {name}"] = lambda name=name: decode(matrix(name, 64, HIDDEN), torch.zeros(64, HIDDEN))
    for name in repack.TYPES:
        named[f"repacking {name}"] = lambda name=name: repack.repack_into(
            BY_NAME[name],
            torch.zeros(1, 64, row_bytes(name, HIDDEN), dtype=torch.uint8),
            planes(name, 64, HIDDEN).data[None],
        )
    for name in LAYOUTS:
        named[f"product {name}"] = lambda name=name: linear(matrix(name, 64, HIDDEN), room_for(1, HIDDEN, True, cpu))
    return named


def properties(spelled: str) -> tuple[GPUTarget, targets.Target]:
    """The compiler's target and the engine's of "cuda:90" or "hip:gfx1100"."""
    backend, _, arch = spelled.partition(":")
    if backend == "cuda":
        form = targets.TENSOR if int(arch) >= 80 else targets.CUDA
        mine = targets.Target(form, int(arch) >= 90, int(arch) >= 80, 2 if arch in ("80", "90") else 1)
        return GPUTarget("cuda", int(arch), 32), mine
    return GPUTarget("hip", arch, 32), targets.Target(targets.form_of_gfx(arch), False, arch >= "gfx11", 1)


@dataclass(frozen=True)
class Compiled:
    """One kernel for one target: registers a thread, bytes of shared memory, bytes of spilled registers, seconds."""

    kernel: str
    registers: int
    shared: int
    spilled: int
    seconds: float


BLOCKED = r"(#\w+) = #ttg\.blocked<\{sizePerThread = \[(.*?)\], threadsPerWarp = \[(.*?)\], .*?order = \[(.*?)\]\}>"


def check_operands(text: str) -> None:
    """That a tensor core instruction's operands lie where it takes them from, else its products would be of others.

    One word an operand: lane t + 4·g (ops.gpu.tensor). Four words of a thread: block + 4·row (ops.gpu.integer). Warps
    that take turns (ops.gpu.turns) do so in the order of the last dimension.
    """
    layouts = {name: lay for name, *lay in re.findall(BLOCKED, text)}
    warps = dict(re.findall(r"(#\w+) = #ttg\.blocked<\{(.*?)\}>", text))
    for line in text.splitlines():
        if "inline_asm" in line and "mma.sync" in line:
            [of] = re.findall(r"(#\w+)>", line.split("->")[-1])[:1]
            single = "packed_element = 1 " in line
            wanted = ["1, 1, 1", "4, 8, 1", "0, 1, 2"] if single else ["1, 1, 4", "4, 8, 1", "2, 0, 1"]
            if layouts[of] != wanted:
                raise ValueError(f"operands of a tensor core instruction lie as {layouts[of]}, not as {wanted}")
        if "ld.shared.v4" in line and "packed_element = 4 " in line:
            [of] = re.findall(r"(#\w+)>", line.split("->")[-1])[:1]
            if not layouts[of][1].endswith(", 1"):
                raise ValueError(f"four words that follow each other lie on lanes of [{layouts[of][1]}]")
        if "bar.sync $" in line or "bar.arrive $" in line:
            [threads] = re.findall(r"warpsPerCTA = \[(.*?)\]", warps[re.findall(r"(#\w+)>", line)[0]])
            if not threads.startswith("1, 1, "):
                raise ValueError(f"turns are taken by warps that lie as [{threads}]")


def compiled(launch: Recorded, to: GPUTarget) -> Compiled:
    start = time.perf_counter()
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    made = triton.compile(source, target=to, options=launch.options)
    seconds = time.perf_counter() - start
    check_operands(str(made.asm["ttgir"]))
    if to.backend == "hip":
        found = {
            key: int(value)
            for key, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", made.asm["amdgcn"])
        }
        return Compiled(made.name, found["vgpr_count"], made.metadata.shared, found["vgpr_spill_count"], seconds)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        check_descriptors(made.asm["ptx"], cubin)
        if launch.options.get("launch_pdl"):
            check_early(made.asm["ptx"], launch.kernel.__name__, launch.pointers)
        check_rooms(made.asm["ptx"], launch.kernel.__name__)
        usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    return Compiled(made.name, found["REG"], made.metadata.shared, found["STACK"], seconds)


def all_of(spelled: str, name: str, call: Callable[[], Any]) -> Iterator[Compiled]:
    """The kernels that a call launches, compiled for a target."""
    to, mine = properties(spelled)
    with recording(mine) as launches:
        call()
    done = set()
    for launch in launches:
        key = (launch.kernel, repr(launch.constants))
        if key not in done:
            done.add(key)
            yield compiled(launch, to)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--only", nargs="*", default=[""], help="names that begin with one of these")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, str]] = {}
    failures = 0
    for spelled in options.targets:
        for name, call in families().items():
            if not name.startswith(tuple(options.only)):
                continue
            try:
                for made in all_of(spelled, name, call):
                    cell = f"{made.registers} / {made.shared}" + (f" (spills {made.spilled})" if made.spilled else "")
                    rows.setdefault((name, made.kernel), {})[spelled] = cell
                    print(f"{spelled:12s} {name:24s} {made.kernel:24s} {cell}  {made.seconds:.1f} s", flush=True)
            except Exception as error:
                failures += 1
                rows.setdefault((name, "?"), {})[spelled] = "failed"
                print(f"{spelled:12s} {name:24s} FAILED {str(error)[-300:]}", flush=True)
    if options.table:
        lines = ["| what | kernel | " + " | ".join(options.targets) + " |", "|---|---|" + "---|" * len(options.targets)]
        for (name, kernel), cells in rows.items():
            lines.append(f"| {name} | {kernel} | " + " | ".join(cells.get(t, "") for t in options.targets) + " |")
        options.table.write_text("\n".join(lines) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
