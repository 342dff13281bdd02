"""What a machine can do: the figures of `jubako probe`, stored per machine, and a quick stand-in without them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from math import isfinite
from typing import Any

from ..errors import FileFormatError
from ..quant import block_type

VERSION = 1  # of the stored form; another one is measured anew


@dataclass(frozen=True)
class Identity:
    """What figures hold for: another card, driver, processor, or amount of memory is another machine."""

    cpu: str
    cores: int
    ram: int  # bytes, the whole machine's
    driver: str = ""
    cards: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CardRates:
    """One GPU. Bytes, bytes/s, seconds.

    read, copy    of its memory; a copy counts bytes read and written
    to_card, to_host   large copies over the link, from and to pinned memory
    latency       of a copy of 4 KiB to the card, waited for
    mapped        a kernel reading pinned memory in place
    node          one launch in a captured graph
    matmul        multiply-adds/s of a large product in half precision
    """

    name: str
    total: int
    free: int
    read: float
    copy: float
    to_card: float
    to_host: float
    latency: float
    mapped: float
    node: float
    matmul: float


@dataclass(frozen=True)
class Kernel:
    """The CPU kernels on one block type. Bytes/s of the file's bytes for one token, multiply-adds/s for a prompt."""

    experts: Mapping[int, float]  # by threads
    linear: float
    experts_macs: float
    linear_macs: float


@dataclass(frozen=True)
class Disk:
    """The file system that holds models. Bytes/s, reads/s, and seconds of one read of 4 KiB alone.

    direct: whether it could be read past the page cache (O_DIRECT)
    """

    path: str
    sequential: float
    random_reads: float
    latency: float
    direct: bool
    free: int


@dataclass(frozen=True)
class Together:
    """Rates while both work: each slows the other. Bytes/s."""

    link: float
    experts: float
    kind: str = "IQ3_XXS"  # block type of the experts then


@dataclass(frozen=True)
class Machine:
    """Everything measured. Bytes, bytes/s, seconds.

    ram_free     bytes that a process could take when measured, container limits included
    ram_limit    bytes of the container, or of the machine
    ram_read     by threads
    kernels      by block type
    call         one call of a kernel on nothing, its cost beside the work
    pinned       bytes that can be pinned at most; 0 without a GPU
    measured     when, ISO date and time; "" for figures that nobody measured
    """

    identity: Identity
    ram_free: int
    ram_limit: int
    ram_read: Mapping[int, float]
    isa: str
    kernels: Mapping[str, Kernel]
    call: float
    disk: Disk
    cards: tuple[CardRates, ...] = ()
    together: Together | None = None
    pinned: int = 0
    measured: str = ""
    seconds: float = 0.0
    version: int = VERSION
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def threads(self) -> int:
        """Threads that the kernels run on by default: one per core."""
        return self.identity.cores

    def kernel(self, kind: str) -> Kernel:
        """The rates of a block type; of the one nearest in bits per weight where it was not measured."""
        if kind in self.kernels:
            return self.kernels[kind]
        bits = block_type(kind).bits_per_weight
        return self.kernels[min(self.kernels, key=lambda name: abs(block_type(name).bits_per_weight - bits))]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Machine:
        """Raises FileFormatError for another version, a shape that it never writes, or rates that can't be."""
        if not isinstance(stored, Mapping):
            raise FileFormatError(f"figures of a machine are an object, not {type(stored).__name__}")
        if stored.get("version") != VERSION:
            raise FileFormatError(f"figures of version {stored.get('version')!r}; this Jubako writes {VERSION}")
        try:
            values = dict(stored)
            values["identity"] = Identity(**(stored["identity"] | {"cards": tuple(stored["identity"]["cards"])}))
            values["ram_read"] = _by_threads(stored["ram_read"])
            values["kernels"] = {
                name: Kernel(**(kernel | {"experts": _by_threads(kernel["experts"])}))
                for name, kernel in stored["kernels"].items()
            }
            values["disk"] = Disk(**stored["disk"])
            values["cards"] = tuple(CardRates(**card) for card in stored["cards"])
            values["together"] = None if stored["together"] is None else Together(**stored["together"])
            values["notes"] = tuple(stored["notes"])
            if missing := {f.name for f in fields(cls)} - values.keys():
                raise KeyError(", ".join(sorted(missing)))
            machine = cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"figures of a machine that can't be read: {error}") from error
        _check(machine)
        return machine


def _check(machine: Machine) -> None:
    """Raises FileFormatError for a figure that no machine has; what divides must be more than nothing."""
    parts: dict[str, object] = {f"card {n}": card for n, card in enumerate(machine.cards)}
    parts |= {"disk": machine.disk, **machine.kernels}
    if machine.together:
        parts["together"] = machine.together
    values = {f"{part} {name}": value for part, each in parts.items() for name, value in vars(each).items()}
    values |= {name: getattr(machine, name) for name in ("ram_free", "ram_limit", "call", "pinned", "isa", "measured")}
    values["cores"] = machine.identity.cores
    tables = {f"{kind} experts": kernel.experts for kind, kernel in machine.kernels.items()}
    tables["ram_read"] = machine.ram_read
    for name, table in {**tables, "kernels": machine.kernels}.items():
        if not table:
            raise FileFormatError(f"figures of a machine: {name} is empty")
    values |= {f"{name} by {threads}": rate for name, table in tables.items() for threads, rate in table.items()}
    for name, value in values.items():
        if name not in tables:
            _check_value(name, value)
    for kind in (*machine.kernels, *([machine.together.kind] if machine.together else ())):
        block_type(kind)


def _check_value(name: str, value: object) -> None:
    """One figure, or text. Raises FileFormatError where it is neither."""
    last = name.split()[-1]
    if last in ("name", "path", "kind", "isa", "measured"):
        if not isinstance(value, str):
            raise FileFormatError(f"figures of a machine: {name} is {value!r:.50}; text was expected")
    elif last != "direct":
        least = last not in ("ram_free", "call", "pinned", "latency", "free", "node", "link")
        real = isinstance(value, (int, float)) and isfinite(value)
        if not real or value < 0 or (least and value == 0):  # type: ignore[operator]
            raise FileFormatError(f"figures of a machine: {name} is {value!r:.50}; a number above 0 was expected")


def _by_threads(stored: Mapping[str, Any]) -> dict[int, float]:
    return {int(threads): float(rate) for threads, rate in stored.items()}
