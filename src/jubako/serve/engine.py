"""The engine process: `python -m jubako.serve.engine FD`, FD being its end of the socket pair.

One thread: commands are read between steps, each step's events go out in one message. It ends when the server does.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..core import Event, Failed, Request
from ..errors import JubakoError
from .protocol import AskStatus, Broken, Cancel, Channel, Command, Happened, Loading, Ready, Start, Status, Stop, Submit

if TYPE_CHECKING:
    from ..engine.model import Model


class Steps(Protocol):
    """What is run here; `engine.scheduler.Scheduler` in earnest."""

    @property
    def busy(self) -> bool: ...
    def submit(self, request: Request) -> None: ...
    def cancel(self, id: str) -> None: ...
    def step(self) -> list[tuple[str, Event]]: ...
    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def run(connection: socket.socket, schedule: Callable[[Model, Start], Steps]) -> int:
    """Load the model that the server names, then serve it until told to stop; the exit code."""
    began = time.monotonic()
    channel: Channel[Command] = Channel(connection, Command)
    start = channel.receive(wait=True)[0]
    assert isinstance(start, Start)
    try:
        channel.send(Loading("starting the engine"))
        from ..engine.model import load

        channel.send(Loading("reading the model"))
        model = load(start.files, start.device, threads=start.threads, kv_bits=start.kv_bits, context=start.context)
        steps = schedule(model, start)
    except (JubakoError, OSError, MemoryError) as error:
        channel.send(Broken(str(error) or type(error).__name__))
        return 1
    channel.send(Ready(model.context, model.config.vocabulary, start.sequences, time.monotonic() - began))
    try:
        while _take_commands(channel, steps):
            if steps.busy and (events := steps.step()):
                channel.send(Happened(tuple(events)))
    except (EOFError, ConnectionError):
        pass  # the server has gone
    steps.close()
    return 0


def _take_commands(channel: Channel[Command], steps: Steps) -> bool:
    """Carry out what the server wants, waiting for it when there is no other work; False: end."""
    for command in channel.receive(wait=not steps.busy):
        match command:
            case Submit(request):
                try:
                    steps.submit(request)
                except JubakoError as error:
                    channel.send(Happened(((request.id, Failed("request", str(error))),)))
            case Cancel(id):
                steps.cancel(id)
            case AskStatus():
                channel.send(Status(steps.status()))
            case Stop():
                return False
            case Start():
                raise ValueError("the engine was started twice")
    return True


def _schedule(model: Model, start: Start) -> Steps:
    from ..engine.scheduler import Scheduler

    scheduler: Steps = Scheduler(model, sequences=start.sequences)
    return scheduler


def main(schedule: Callable[[Model, Start], Steps] = _schedule) -> None:
    """Take the socket from the command line. Ctrl-C in a terminal reaches every process; here the server decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(run(socket.socket(fileno=int(sys.argv[1])), schedule))


if __name__ == "__main__":
    main()
