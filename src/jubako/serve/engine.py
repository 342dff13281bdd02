"""The engine process: `python -m jubako.serve.engine FD LEVEL`: its end of the socket pair, and what it logs.

One thread: commands are read between steps, each step's events go out in one message. It ends when the server does.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _cpu
from ..core import Failed
from ..errors import CardLostError, JubakoError
from .logs import set_up
from .protocol import AskStatus, Broken, Cancel, Channel, Command, Happened, Loading, Ready, Start, Status, Stop, Submit

if TYPE_CHECKING:
    from ..engine.model import Model
    from ..engine.scheduler import Scheduler

log = logging.getLogger(__name__)


def run(connection: socket.socket) -> int:
    """Load the model that the server names, then serve it until told to stop; the exit code.

    It ends where a GPU is lost: the server starts another, which goes on without that card.
    """
    began = time.monotonic()
    channel: Channel[Command] = Channel(connection, Command)
    try:
        start = channel.receive(wait=True)[0]
        assert isinstance(start, Start)
        channel.send(Loading("starting the engine"))
        from ..engine.model import load
        from ..text.grammar import warm

        channel.send(Loading("reading the model"))
        model = load(
            start.files,
            start.device,
            threads=start.threads,
            kv_bits=start.kv_bits,
            context=start.context,
            sequences=start.sequences,
            ram=start.ram,
            gpus=start.gpus,
            vram=start.vram,
            split=start.split,
        )
        scheduler = _schedule(model, start)
        if model.tokenizer:
            warm(model.tokenizer)  # the first answer of a given form would wait for it otherwise
    except EOFError:
        return 0  # the server has gone before it said anything
    except (JubakoError, OSError, MemoryError) as error:
        with suppress(ConnectionError):  # it may be the server that has gone
            channel.send(Broken(str(error) or type(error).__name__))
        return 1
    try:
        channel.send(Ready(model.context, model.config.vocabulary, start.sequences, time.monotonic() - began))
        while _take_commands(channel, scheduler):
            if scheduler.busy and (events := scheduler.step()):
                channel.send(Happened(tuple(events)))
    except (EOFError, ConnectionError):
        pass  # the server has gone
    except CardLostError as error:
        log.error("%s", error)
        return 1
    scheduler.close()
    return 0


def _take_commands(channel: Channel[Command], scheduler: Scheduler) -> bool:
    """Carry out what the server wants, waiting for it when there is no other work; False: end."""
    for command in channel.receive(wait=not scheduler.busy):
        match command:
            case Submit(request):
                try:
                    scheduler.submit(request)
                except JubakoError as error:
                    channel.send(Happened(((request.id, Failed("request", str(error))),)))
            case Cancel(id):
                scheduler.cancel(id)
            case AskStatus():
                channel.send(Status(scheduler.status()))
            case Stop():
                return False
            case Start():
                raise ValueError("the engine was started twice")
    return True


def _schedule(model: Model, start: Start) -> Scheduler:
    from ..engine.saved.store import SessionStore
    from ..engine.scheduler import Scheduler
    from ..place.folders import may_write

    directory = None if start.sessions is None else Path(start.sessions)
    store = SessionStore(directory, start.sessions_bytes) if start.sessions_bytes else None
    if store is not None and directory is None and not may_write(store.directory):  # nobody asked for that folder
        log.warning("what was read is not kept for the next start: %s can't be written to", store.directory)
        store = None
    return Scheduler(
        model, sequences=start.sequences, drafts=start.drafts, prefix_bytes=start.prefix_bytes, store=store
    )


def main() -> None:
    """Take the socket and the level of the log from the command line.

    What systemd sends to stop a service reaches every process; here the server decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _cpu.explain_cut_files()
    set_up(sys.argv[2])
    sys.exit(run(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
