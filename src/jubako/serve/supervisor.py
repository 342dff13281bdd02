"""Keeps the engine process: starts it, passes requests and events, and starts it again when it dies."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..core import Event, Failed, Finished, Request
from .problems import EngineDown
from .protocol import (
    AskStatus,
    Broken,
    Cancel,
    Command,
    Happened,
    Loading,
    Ready,
    Report,
    Start,
    Status,
    Stop,
    Submit,
)
from .wire import Wire

ENGINE = (sys.executable, "-m", "jubako.serve.engine")
_LONGEST_PAUSE = 30.0  # seconds between two attempts to bring the engine back
_STATUS_TIME = 30.0  # seconds the engine may take to tell its status; a step of a long prompt lies between
_SILENCE = 120.0  # seconds without a sign from an engine at work after which it counts as hanging

log = logging.getLogger("jubako")


class Engine:
    """The server's side of the engine process. All in one event loop.

    state   "starting", "loading" (see `stage`), "ready", "failed" (the model can't be loaded), "stopped"
    ready   what the engine told when it was last ready; stays while it is being restarted
    """

    def __init__(self, start: Start, command: Sequence[str] = ENGINE, log_level: str = "info") -> None:
        self.state = "starting"
        self.stage = "starting the engine"
        self.problem = ""
        self.restarts = 0
        self.ready: Ready | None = None
        self._start = start
        self._command, self._log_level = command, log_level
        self._broken = ""  # why the engine could not load, this time
        self._process: asyncio.subprocess.Process | None = None
        self._wire: Wire | None = None
        self._answers: dict[str, _Events] = {}
        self._heard = time.monotonic()
        self._statuses: list[asyncio.Future[dict[str, Any]]] = []
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def healthy(self) -> bool:
        """Whether it can answer: ready, and not silent over work."""
        return self.state == "ready" and (not self._answers or time.monotonic() - self._heard < _SILENCE)

    def start(self) -> None:
        """Begin loading; `settled` tells how it went."""
        self._watch = asyncio.create_task(self._keep_running())

    async def launched(self) -> None:
        """Wait until the process exists and knows what to load."""
        while self.state == "starting":
            self._changed.clear()
            await self._changed.wait()

    async def settled(self) -> bool:
        """Wait until the engine is ready (True) or the model turns out not to load (False; see `problem`)."""
        while self.state not in ("ready", "failed", "stopped"):
            self._changed.clear()
            await self._changed.wait()
        return self.state == "ready"

    def submit(self, request: Request, ended: Callable[[], None] = lambda: None) -> asyncio.Queue[Event]:
        """Hand a request to the engine; its events, the last being Finished or Failed. Raises EngineDown.

        ended: called when the last event has come, though it may not be taken out of the queue yet.
        """
        if self.state != "ready":
            raise EngineDown(self.explain())
        events = _Events(ended)
        if not self._answers:
            self._heard = time.monotonic()
        self._answers[request.id] = events
        self._send(Submit(request))
        return events

    def cancel(self, id: str) -> None:
        """Nothing more will be heard of this request, and the engine stops working on it."""
        if self._answers.pop(id, None) is not None:
            self._send(Cancel(id))

    async def status(self) -> dict[str, Any]:
        """What the engine tells of itself; empty while it can't answer."""
        if self.state != "ready":
            return {}
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._statuses.append(future)
        self._send(AskStatus())
        try:
            return await asyncio.wait_for(future, _STATUS_TIME)
        except (TimeoutError, EngineDown):
            return {}
        finally:
            with suppress(ValueError):
                self._statuses.remove(future)

    def explain(self) -> str:
        """Why the engine does not answer, for a client."""
        if self.state == "loading" or self.state == "starting":
            return f"the model is being loaded ({self.stage}); try again in a moment"
        return self.problem or "the engine is not running"

    async def stop(self, grace: float = 10.0) -> None:
        """End the engine: it may flush what it keeps for `grace` seconds, then it is killed."""
        running, process = self.state == "ready", self._process
        self._become("stopped")
        self._send(Stop())
        if process:
            await _end(process, grace if running else 0.0)
        if self._watch:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def _send(self, command: Command) -> None:
        if self._wire:
            self._wire.send(command)

    def _become(self, state: str, stage: str = "") -> None:
        self.state, self.stage = state, stage
        self._changed.set()

    async def _keep_running(self) -> None:
        pause = 0.0
        while self.state not in ("failed", "stopped"):
            began = time.monotonic()
            await self._live_once()
            if self.state in ("failed", "stopped"):
                return
            self.restarts += 1
            pause = 0.0 if time.monotonic() - began > _LONGEST_PAUSE else min(_LONGEST_PAUSE, 2 * pause + 0.25)
            await asyncio.sleep(pause)

    async def _live_once(self) -> None:
        """One life of the engine process, from its start to its end."""
        self._broken = ""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    self._log_level,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the server alone
                )
            except OSError as error:  # no more processes, no memory for one
                ours.close()
                self.problem = f"the engine can't be started: {error.strerror}"
                log.error(self.problem)
                if self.ready is None:
                    self._become("failed")
                return
        _, self._wire = await asyncio.get_running_loop().create_connection(lambda: Wire(self._take), sock=ours)
        self._send(self._start)
        self._become("loading", "starting the engine")
        try:
            await self._wire.gone
        except asyncio.CancelledError:  # a second Ctrl-C: the server ends at once
            self._become("stopped")
            raise
        finally:
            await self._bury()

    async def _bury(self) -> None:
        """The process has ended, or must; tell everyone who waits."""
        assert self._process and self._wire
        self._wire.close()
        code = await _end(self._process, 10.0 if self.state == "stopped" else 1.0)
        if self.state not in ("failed", "stopped"):
            how, stage = {"event": "engine_died", "exit_code": code}, "restarting the engine"
            if self._broken:  # the reason is for the log alone: it has paths in it
                self.problem = stage = "the model did not load again; the server's log says why"
                log.error("the model did not load again: %s", self._broken, extra=how)
            else:
                self.problem = f"the engine stopped unexpectedly ({_how(code)}) and is being restarted; ask again"
                log.error(self.problem, extra=how)
            self._become("loading", stage)
        for events in self._answers.values():
            events.put_nowait(Failed("engine", self.problem or "the server is shutting down"))
        self._answers.clear()
        for future in self._statuses:
            if not future.done():
                future.set_result({})

    def _take(self, report: Report) -> None:
        self._heard = time.monotonic()
        match report:
            case Happened(events):
                for id, event in events:
                    self._pass_on(id, event)
            case Loading(stage):
                self._become("loading", stage)
            case Ready():
                self.ready, self.problem = report, ""
                log.info("the engine is ready", extra={"event": "engine_ready", "seconds": round(report.seconds, 2)})
                if self.state != "stopped":
                    self._become("ready")
            case Broken(message):
                self._broken = message
                if self.ready is None:  # what once loaded may load again, as when memory was short
                    self.problem = message
                    self._become("failed")
            case Status(status):
                for future in self._statuses[:1]:
                    self._statuses.remove(future)
                    if not future.done():
                        future.set_result(status)

    def _pass_on(self, id: str, event: Event) -> None:
        events = self._answers.get(id)
        if events is not None:  # not cancelled meanwhile
            events.put_nowait(event)
            if isinstance(event, (Finished, Failed)):
                del self._answers[id]


class _Events(asyncio.Queue[Event]):
    """The events of one answer; `ended` is called when the last one is put in."""

    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    def put_nowait(self, item: Event) -> None:
        super().put_nowait(item)
        if isinstance(item, (Finished, Failed)):
            self._ended()


async def _end(process: asyncio.subprocess.Process, grace: float) -> int:
    """The exit code of a process that ends within `grace` seconds or is killed."""
    try:
        return await asyncio.wait_for(process.wait(), grace)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
