"""Several requests at once on one model: continuous batching, prompts in chunks, prefixes that are read only once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil

from ..core import Event, Failed, Finished, GenerationStats, Request, TokenChoice, Tokens, whole
from ..errors import CardLostError, JubakoError, MachineError, RequestError
from ..text.rules import TokenRule
from .boxes import Held, boxes, weight_bytes
from .draft import DraftOptions, verify
from .executor import STEP_COLUMNS
from .gauges import Gauges
from .logits import Logits
from .model import CHUNK, Model
from .pace import Pace
from .plan import SharingExecutor
from .room import Room
from .running import Running
from .saved.checkpoint import SPACING, checkpoint_positions, common_length
from .saved.identity import model_key
from .saved.recall import Recall
from .saved.store import SessionStore

log = logging.getLogger(__name__)

WORTH_WAITING = 256  # tokens of a common beginning for which a request waits until another has read them


class Waiting(NamedTuple):
    """A request that has not begun, with its prompt as int32."""

    request: Request
    rules: Sequence[TokenRule]
    options: DraftOptions
    prompt: np.ndarray


class Scheduler:
    """Runs up to `sequences` requests together, `columns` tokens a step, each with the text it would have alone.

    Owns the sequences' states and their pool of pages, the checkpoints (`prefix_bytes`; None: a share of the free
    memory) and with a `store` those on disk. drafts: most drafts a step, None for what pays. One thread at a time.
    Raises MachineError where memory for all that is not there.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequences: int = 8,
        columns: int = STEP_COLUMNS,
        drafts: int | None = None,
        prefix_bytes: int | None = None,
        store: SessionStore | None = None,
    ) -> None:
        if not 1 <= whole("sequences", sequences) <= whole("columns", columns) <= STEP_COLUMNS:
            raise RequestError(
                f"sequences is {sequences} and columns {columns}; 1 ≤ sequences ≤ columns ≤ {STEP_COLUMNS}"
            )
        self.model, self._columns, self._drafts = model, columns, drafts
        if not isinstance(model.executor, SharingExecutor):
            raise MachineError("this device runs one sequence at a time; use another to serve")
        self._executor = model.executor
        key = model_key(model.paths, model.executor.layout)
        self._limit = sequences
        room = self._room = Room(model.executor, sequences, model.context, prefix_bytes, key)
        self._recall = Recall(model.executor, room.pool, room.prefix_bytes, store, room.layout)
        self._waiting: list[Waiting] = []
        self._running: list[Running] = []
        self._cancelled: set[str] = set()
        self._gauges = Gauges()
        self._weights = weight_bytes(model.network)
        self._pace = Pace(getattr(model.executor, "chunk", CHUNK))
        self._turn = 0

    @property
    def busy(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._running or self._waiting or self._cancelled)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError where it can't be done, now or ever."""
        if request.id in self._ids():
            raise RequestError(f"request id {request.id!r} is in use")
        ids, vocabulary = np.array(request.prompt, np.int64), self.model.config.vocabulary
        if len(ids) == 0:
            raise RequestError("the prompt is empty; give at least one token")
        if len(wrong := ids[(ids < 0) | (ids >= vocabulary)]):
            raise RequestError(f"token id {wrong[0]} is outside the vocabulary of {vocabulary}")
        whole("max_tokens", request.max_tokens, 1)
        if len(ids) > self._room.context:
            raise RequestError(
                f"{len(ids)} tokens do not fit in the context of {self._room.context}; shorten the prompt"
            )
        options = DraftOptions(self._drafts if request.drafts is None else request.drafts)
        self._waiting.append(Waiting(request, self.model.rules(request), options, ids.astype(np.int32)))

    def cancel(self, id: str) -> None:
        """End a request with the next step; what it has read is kept for others. Unknown ids are ignored."""
        if id in self._ids():
            self._cancelled.add(id)

    def step(self) -> list[tuple[str, Event]]:
        """One step of the engine, for a chunk of one prompt or for all who decode: what happened, by request.

        Raises CardLostError, after which nothing more can be done.
        """
        events: list[tuple[str, Event]] = []
        self._recall.poll()
        self._end_cancelled(events)
        self._admit(events)
        reading = [run for run in self._running if run.reading]
        decoding = [run for run in self._running if not run.reading]
        self._turn += 1
        if reading and (not decoding or self._pace.prompt_is_due):
            self._read(min(reading, key=lambda run: run.served), bool(decoding), events)
        elif decoding:
            self._decode(decoding, events)
        return events

    def close(self) -> None:
        """Drop what is running, write what the disk has not got yet, and let go of states and pages."""
        for run in self._running:
            run.state.reset()
        self._running, self._waiting = [], []
        self._recall.close()
        self._room.idle.clear()

    def status(self) -> dict[str, Any]:
        """Figures of now, as plain numbers."""
        memory, figures = psutil.virtual_memory(), self._gauges.figures()
        prefix, kv = self._recall.figures(), self._room.figures()
        states = prefix["states"] + self._limit * self._room.layout.fixed_bytes
        held = Held(kv["bytes"], states, prefix.get("disk", {}).get("bytes", 0), kv["far"])
        return {
            "sequences": {"running": len(self._running), "waiting": len(self._waiting), "limit": self._limit},
            **figures,
            "prefix": {**prefix, **figures["totals"]},
            "kv": kv,
            "boxes": boxes(
                self._weights, held, self.model.paths[0], self._executor.video_bytes, self._executor.experts_in
            ),
            "memory": {
                "process_bytes": psutil.Process().memory_info().rss,
                "available_bytes": memory.available,
                "total_bytes": memory.total,
                "planned_bytes": self._room.planned_bytes,
            },
        }

    # Joining and leaving

    def _ids(self) -> set[str]:
        return {run.id for run in self._running} | {waiting.request.id for waiting in self._waiting}

    def _admit(self, events: list[tuple[str, Event]]) -> None:
        """Let waiting requests begin, in their order, as far as states and pages are there."""
        postponed: list[Waiting] = []
        while self._waiting and len(self._room.idle) > len(postponed):
            if not self._room.fits(self._waiting[0].request, self._running):
                break
            waiting = self._waiting.pop(0)
            if self._will_be_read(waiting.prompt):
                postponed.append(waiting)
                continue
            try:
                run = self._start(waiting)
                events.append((run.id, run.progress))
            except Exception as error:
                events.append((waiting.request.id, _failure(error)))
                self._room.idle[-1].reset()
        self._waiting[:0] = postponed

    def _start(self, waiting: Waiting) -> Running:
        """Give it a state and what is known of its prompt."""
        request, state = waiting.request, self._room.idle[-1]
        run = Running(request, waiting.prompt, state, self._room.context, waiting.rules, waiting.options)
        cached = self._recall.resume(state, run.prompt)
        run.stats.cached_tokens = cached
        spacing = max(SPACING, self._pace.most)  # several GPUs want long chunks
        page = self._room.pool.page_tokens
        run.positions = checkpoint_positions(len(run.prompt), cached, request.keep, page, spacing)
        run.served = self._turn
        self._gauges.cached_tokens += cached
        self._room.idle.pop()
        self._running.append(run)
        return run

    def _will_be_read(self, prompt: np.ndarray) -> bool:
        """Whether another prompt is about to read a long beginning of this one; it will leave a checkpoint there."""
        known: int | None = None
        for run in self._running:
            common = min(common_length(prompt, run.prompt), len(prompt) - 1) if run.reading else 0
            if common <= run.state.position:
                continue
            known = self._recall.known(prompt) if known is None else known
            if common < known + WORTH_WAITING:
                continue
            run.positions = sorted({*run.positions, common})
            return True
        return False

    def _end_cancelled(self, events: list[tuple[str, Event]]) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.request.id in self._cancelled:
                events.append((one.request.id, Finished(GenerationStats(len(one.prompt), finish_reason="cancelled"))))
            else:
                self._waiting.append(one)
        for run in [run for run in self._running if run.id in self._cancelled]:
            self._finish(run, "cancelled", events)
        self._cancelled.clear()

    def _finish(self, run: Running, reason: str, events: list[tuple[str, Event]]) -> None:
        """The answer is complete: its state stays as a checkpoint, the end of a turn."""
        run.stats.finish_reason = reason
        self._save(run)
        self._leave(run)
        events.append((run.id, Finished(run.stats)))

    def _fail(self, run: Running, error: Exception, events: list[tuple[str, Event]]) -> None:
        events.append((run.id, _failure(error)))
        self._leave(run)

    def _leave(self, run: Running) -> None:
        run.state.reset()
        self._room.idle.append(run.state)
        self._running.remove(run)
        self._gauges.drafts(run.stats.drafted, run.stats.accepted)

    def _save(self, run: Running) -> None:
        """A checkpoint of what the state has read."""
        if run.state.position > 0:
            self._recall.save(run.state, run.tokens_read(), run.durable)

    # Steps

    def _read(self, run: Running, others: bool, events: list[tuple[str, Event]]) -> None:
        """The next chunk of a prompt."""
        run.served = self._turn
        chunk = run.chunk(self._pace.chunk(others))
        try:
            with self._gauges.stage("prefill"):
                self._need(run.state.lacks(run.state.position + len(chunk)))
                [row] = Logits.of(self._executor.forward(chunk, run.state, last_only=True))
            self._pace.read(len(chunk), self._gauges.spent(), others)
            if not np.isfinite(row.logits.max()):
                raise JubakoError(f"the network's numbers broke down before position {run.state.position}")
            if run.checkpoint_due():
                with self._gauges.stage("checkpoint"):
                    self._save(run)
            events.append((run.id, run.progress))
            choices: list[TokenChoice] = []
            if run.state.position == len(run.prompt):
                with self._gauges.stage("sample"):
                    choices = run.begin(row)
                self._tell(run, choices, events)
            self._gauges.step(len(chunk), len(choices), 0)
        except Exception as error:
            self._fail(run, error, events)

    def _decode(self, runs: list[Running], events: list[tuple[str, Event]]) -> None:
        """A step of all who decode, with as many drafts as the columns allow."""
        speculations = [run.speculation for run in runs]
        width = self._columns // len(runs)
        try:
            self._need(sum(run.state.lacks(run.state.position + width) for run in runs))
            before = sum(run.stats.draft_seconds for run in runs)
            with self._gauges.stage("forward"):
                logits = verify(self._executor, self.model.costs, speculations, self._columns)
        except Exception as error:
            log.exception("a step of %d sequences failed", len(runs))
            for run in runs:
                self._fail(run, error, events)
            return
        self._pace.decoded(self._gauges.spent())
        self._gauges.split("draft", "forward", sum(run.stats.draft_seconds for run in runs) - before)
        generated = 0
        for run, rows in zip(runs, logits, strict=True):
            run.served = self._turn
            try:
                with self._gauges.stage("sample"):
                    choices = run.go_on(rows)
                generated += len(choices)
                self._tell(run, choices, events)
            except Exception as error:
                self._fail(run, error, events)
        self._gauges.step(0, generated, len(runs))

    def _tell(self, run: Running, choices: list[TokenChoice], events: list[tuple[str, Event]]) -> None:
        if choices:
            events.append((run.id, Tokens(tuple(choices))))
        if run.answer.finish_reason:
            self._finish(run, run.answer.finish_reason, events)

    def _need(self, pages: int) -> None:
        if not self._recall.make_room(pages):
            raise MachineError(f"all {self._room.pool.pages.count} pages for keys and values are in use")


def _failure(error: Exception) -> Failed:
    """What a request is told. A lost card is no request's own failure, and is raised."""
    if isinstance(error, CardLostError):
        raise error
    kind = "request" if isinstance(error, RequestError) else "engine"
    return Failed(kind, str(error) if isinstance(error, JubakoError) else f"{type(error).__name__}: {error}")
