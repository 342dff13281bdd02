"""The plan: what goes into which box, decided before anything is loaded. The engine loads by it and keeps to it.

`fit.make_plan` fills a `Plan`; `engine.model.load` and what lies below it read it. Bytes are bytes, tokens are tokens;
layers are counted as in the network, the draft layer, where there is one, last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .speed import Speed


@dataclass(frozen=True)
class Wish:
    """What the user asks for; None leaves it to the plan.

    vram       bytes of each card that may be used, at most
    ram        bytes of main memory that this process may use, at most
    slots      experts of each layer that a card holds
    sequences  answers at a time
    gpus       numbers of the cards to use; empty: none; None: those that help
    """

    context: int | None = None
    vram: int | None = None
    ram: int | None = None
    slots: int | None = None
    sequences: int = 1
    gpus: tuple[int, ...] | None = None
    kv_bits: int = 8
    threads: int | None = None


@dataclass(frozen=True)
class Part:
    """A named share of a box, in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Box:
    """VRAM of one card, RAM, or the SSD: its parts, and how much of it may be used (`limit`)."""

    name: str
    limit: int
    parts: tuple[Part, ...]

    @property
    def used(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def headroom(self) -> int:
        """Bytes left below the limit; negative where it does not fit."""
        return self.limit - self.used

    def bytes_of(self, name: str) -> int:
        """Bytes of the part of that name, 0 without one."""
        return sum(part.bytes for part in self.parts if part.name == name)


@dataclass(frozen=True)
class Card:
    """What one GPU holds: the layers from `first` up to `last` (not included), and at most `vram` bytes in all."""

    index: int
    first: int
    last: int
    vram: int


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before loading.

    device        "cuda" or "cpu"
    cards         the GPUs in use, with their layers; none on the CPU
    context       tokens of one sequence
    kv_tokens     tokens of all sequences together that keys and values are kept for
    kv_tokens_vram
                  of these, in video memory: the others' keys and values lie in RAM
    slots         per layer: experts that video memory holds at a time; the number of experts where all of them do
    ram_experts   per layer: experts that RAM holds at a time; fewer than there are means the rest is read from the SSD
    ram           bytes of main memory that the process may use in all
    expert_ram    of these, for experts in the file's own blocks (pinned if a card reads them)
    ring          experts of a layer that the prompt's ring holds beside the slots, in video memory
    chunk         prompt tokens read at a time
    work          bytes of video memory for activations, graphs and the driver
    link_share    of the absent experts' bytes, what the GPU reads over the link itself; the CPU works on the rest
    threads       CPU threads for experts
    prefix_bytes  budget of kept states
    boxes         the same as sums, for those who watch
    speed         what is predicted; None where the machine's rates were not measured
    short         why it does not fit, in one sentence; "" where it does
    """

    device: str
    cards: tuple[Card, ...]
    context: int
    sequences: int
    kv_bits: int
    kv_tokens: int
    kv_tokens_vram: int
    slots: tuple[int, ...]
    ram_experts: tuple[int, ...]
    ram: int
    expert_ram: int
    ring: int
    chunk: int
    work: int
    link_share: float
    threads: int
    prefix_bytes: int
    boxes: tuple[Box, ...] = ()
    speed: Speed | None = None
    short: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def fits(self) -> bool:
        return not self.short

    @property
    def resident(self) -> bool:
        """Whether every expert has a slot."""
        return bool(self.cards) and min(self.slots) >= max(self.ram_experts, default=0) and not self.expert_ram

    @property
    def reads_ssd(self) -> bool:
        """Whether experts are read from the SSD while running."""
        return self.expert_ram > 0 and self.boxes != () and self.box("SSD").bytes_of("experts") > 0

    def box(self, name: str) -> Box:
        """The box of that name ("VRAM", "RAM", "SSD"; further cards "VRAM 1" …)."""
        return next(box for box in self.boxes if box.name == name)
