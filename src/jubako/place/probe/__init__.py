"""`probe` measures this machine once; `stored` and `store` keep the figures in the user's cache folder."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ...errors import FileFormatError, MachineError
from ..folders import cache_folder
from ..machine import CardRates, Disk, Identity, Kernel, Machine, Together
from ..memory import free_memory, total_memory
from . import cpu, disk

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float], None]  # what is measured now, and the share of the whole that is done
_NODES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # a driver's device files: NVIDIA's, AMD's, and those of WSL
UNKNOWN_DISK = Disk("", 500e6, 5000, 2e-4, False, 0)  # a slow SSD, where none could be measured


def cache_file(identity: Identity) -> Path:
    """Where the figures of that machine lie."""
    return cache_folder() / f"machine-{identity.key}.json"


def stored(identity: Identity) -> Machine | None:
    """The figures of that machine, None where there are none that can be used."""
    try:
        return Machine.from_json(json.loads(cache_file(identity).read_text()))
    except (OSError, ValueError, RecursionError, FileFormatError):
        return None


def store(machine: Machine) -> Path:
    """Keep the figures; where they are now."""
    path = cache_file(machine.identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        beside.write_text(json.dumps(machine.as_json(), indent=1) + "\n")
        beside.replace(path)
    except OSError:  # a full disk
        beside.unlink(missing_ok=True)
        raise
    return path


def identify() -> Identity:
    """This machine. Imports torch only where there may be a GPU."""
    cards = tuple(name for name, _ in _cards())
    version = ""
    if cards:
        from .card import driver

        version = driver()
    import jubako._cpu as _cpu

    return Identity(_cpu_name(), _cpu.default_threads(), psutil.virtual_memory().total, version, cards)


def this_machine(kinds: Iterable[str], place: Path) -> Machine:
    """The stored figures with what is free now, or quick ones (a few seconds) of these block types."""
    identity = identify()
    known = stored(identity)
    if known is None:
        return probe(place, types=tuple(dict.fromkeys([*kinds, cpu.REFERENCE])), quick=True)
    return refreshed(known)


def known_or_nominal(place: Path) -> Machine:
    """The stored figures with what is free now; else the sizes of this machine with rates that nobody measured."""
    identity = identify()
    known = stored(identity)
    return refreshed(known) if known else nominal(identity, place)


def nominal(identity: Identity, place: Path) -> Machine:
    """This machine's sizes, and rates that a plan can be made with but nobody should be told: `measured` is empty."""
    kernel = Kernel({identity.cores: 5e9 * identity.cores}, 5e9 * identity.cores, 3e10, 3e10)
    cards = tuple(
        CardRates(name, free, free, 5e11, 5e11, 1.2e10, 1.2e10, 2e-5, 1e10, 2e-6, 3e13) for name, free in _cards()
    )
    drive = replace(UNKNOWN_DISK, path=str(place), free=shutil.disk_usage(place).free)
    return Machine(
        identity=identity,
        ram_free=free_memory(),
        ram_limit=total_memory(),
        ram_read={identity.cores: 2e10},
        isa="",
        kernels={cpu.REFERENCE: kernel},
        call=2e-6,
        disk=drive,
        cards=cards,
        together=Together(1e10, 3e9 * identity.cores) if cards else None,
    )


def refreshed(machine: Machine) -> Machine:
    """The same figures with the memory that is free now."""
    cards = tuple(replace(card, free=free) for card, (_, free) in zip(machine.cards, _cards(), strict=False))
    return replace(machine, ram_free=free_memory(), ram_limit=total_memory(), cards=cards)


def probe(
    place: Path,
    progress: Progress = lambda what, share: None,
    types: Iterable[str] = cpu.TYPES,
    quick: bool = False,
) -> Machine:
    """Measure everything: about half a minute, a few seconds if quick (less memory walked over, no pinning tried).

    place: a model file, or the folder where models are to lie. A part that can't be measured leaves a note, not an
    error.
    """
    import jubako._cpu as _cpu

    began = time.perf_counter()
    identity, notes = identify(), []
    types = list(types)
    steps = len(types) + 8
    done = 0

    def step(what: str) -> None:
        nonlocal done
        progress(what, done / steps)
        done += 1

    free = free_memory()
    step("memory")
    size = cpu.SMALL_POOL if quick or free < 4 * cpu.POOL else cpu.POOL
    pool = cpu.pool(size)
    reads = cpu.read_rates(pool[: len(pool) // 256 * 256], identity.cores)
    kernels = {}
    for kind in types:
        step(f"CPU kernels: {kind}")
        kernels[kind] = cpu.kernel(kind, pool, identity.cores)
    call = cpu.call_seconds()
    step("disk")
    try:
        drive = disk.measure(place, *((0.3, 64 << 20) if quick else ()))
    except MachineError as error:
        drive = UNKNOWN_DISK
        notes.append(str(error))
    cards: list[CardRates] = []
    both: Together | None = None
    pinned = 0
    for name, device in _devices():
        step(f"{name}: memory and link")
        try:
            from . import card

            cards.append(card.measure(device, card.SIZE >> (2 if quick else 0)))
            step(f"{name}: link and CPU together")
            if both is None:
                both = card.together(device, pool, 0.4 if quick else 1.5)
            if not quick and not pinned:
                step("memory that can be pinned")
                pinned = card.pinnable()[0]
        except Exception as error:  # drivers, runtimes and compilers fail in their own ways; the rest still counts
            notes.append(f"{name} could not be measured: {(str(error).splitlines() or [type(error).__name__])[0]}")
    if (load := os.getloadavg()[0]) > 1.5 * identity.cores:
        notes.append(f"Other programs wanted the cores, too (load {load:.0f}): measure again when it is quiet.")
    progress("done", 1.0)
    return Machine(
        identity=identity,
        ram_free=free,
        ram_limit=total_memory(),
        ram_read=reads,
        isa=_cpu.isa(),
        kernels=kernels,
        call=call,
        disk=drive,
        cards=tuple(cards),
        together=both,
        pinned=pinned,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        notes=tuple(notes),
    )


def _devices() -> list[tuple[str, torch.device]]:
    if not any(Path(node).exists() for node in _NODES):
        return []
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [(torch.cuda.get_device_name(i), torch.device("cuda", i)) for i in range(count)]


def _cards() -> list[tuple[str, int]]:
    """Name and free bytes of each card."""
    devices = _devices()
    if not devices:
        return []
    import torch

    return [(name, torch.cuda.mem_get_info(device)[0]) for name, device in devices]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
