"""What the server and the engine process say to each other.

Over a pair of connected sockets, both ways: 4 bytes length (big endian), then JSON as `codec` writes it. The server
begins with `Start`; the engine answers with `Loading`, then `Ready` or `Broken`, and after that with events.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..core import Event, Request
from .codec import dumps, loads

FRAME = 64 << 20  # bytes a message may have


@dataclass(frozen=True)
class Start:
    """What to load and how; fields not explained are those of `jubako.load` and of the scheduler.

    sessions        where what was read is kept over a restart; None: the usual place
    sessions_bytes  how much of it; 0: nothing is kept
    """

    files: tuple[str, ...]
    device: str = "auto"
    threads: int | None = None
    kv_bits: int = 8
    context: int | None = None
    sequences: int = 8
    drafts: int | None = None
    prefix_bytes: int | None = None
    sessions: str | None = None
    sessions_bytes: int = 16 << 30
    ram: int | None = None
    gpus: tuple[int, ...] | None = None
    vram: int | None = None
    split: str = "layers"


@dataclass(frozen=True)
class Submit:
    request: Request


@dataclass(frozen=True)
class Cancel:
    id: str


@dataclass(frozen=True)
class AskStatus:
    pass


@dataclass(frozen=True)
class Stop:
    """Flush what should outlive the process, then end."""


@dataclass(frozen=True)
class Loading:
    """A sign of life: what is being done now."""

    stage: str


@dataclass(frozen=True)
class Ready:
    """context and vocabulary in tokens, seconds since the process began."""

    context: int
    vocabulary: int
    sequences: int
    seconds: float


@dataclass(frozen=True)
class Broken:
    """The model can't be loaded, and why; the process ends."""

    message: str


@dataclass(frozen=True)
class Happened:
    """What one step gave, by request."""

    events: tuple[tuple[str, Event], ...]


@dataclass(frozen=True)
class Status:
    status: dict[str, Any] = field(default_factory=dict)


Command = Start | Submit | Cancel | AskStatus | Stop
Report = Loading | Ready | Broken | Happened | Status

Incoming = TypeVar("Incoming")


def frame(message: Command | Report) -> bytes:
    """A message as it goes over the wire."""
    body = dumps(message)
    if len(body) > FRAME:
        raise ValueError(f"a message of {len(body)} bytes; the limit is {FRAME}")
    return len(body).to_bytes(4, "big") + body


def frame_length(head: bytes) -> int:
    """Bytes of the body that follows these 4 bytes. Raises ValueError beyond the limit."""
    length = int.from_bytes(head, "big")
    if length > FRAME:
        raise ValueError(f"a message of {length} bytes; the limit is {FRAME}")
    return length


class Channel(Generic[Incoming]):
    """The engine's end: blocking, one thread. `kind` is the type of what comes in."""

    def __init__(self, connection: socket.socket, kind: Any) -> None:
        self._socket = connection
        self._kind = kind
        self._buffer = bytearray()

    def send(self, message: Report) -> None:
        self._socket.sendall(frame(message))

    def receive(self, wait: bool) -> list[Incoming]:
        """All messages that are here; with `wait` at least one. Raises EOFError when the other side has gone."""
        messages = self._whole()
        while self._readable(wait and not messages):
            data = self._socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._buffer += data
            messages += self._whole()
        return messages

    def _readable(self, wait: bool) -> bool:
        return bool(select.select([self._socket], [], [], None if wait else 0)[0])

    def _whole(self) -> list[Incoming]:
        """The complete messages in the buffer, taken out of it."""
        messages: list[Incoming] = []
        while len(self._buffer) >= 4:
            end = 4 + frame_length(bytes(self._buffer[:4]))
            if len(self._buffer) < end:
                break
            messages.append(loads(bytes(self._buffer[4:end]), self._kind))
            del self._buffer[:end]
        return messages
