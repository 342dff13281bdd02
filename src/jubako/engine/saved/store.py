"""Checkpoints on disk, so that conversations survive a restart or a crash."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np

from ...errors import MachineError
from ...ops.pages import PagePool, Saved
from ...place.folders import cache_folder
from .checkpoint import Checkpoint
from .directory import Entry, SessionDirectory
from .file import BATCH, NO_PARENT, DamagedFile, Header, Layout, SessionFile, write_file

log = logging.getLogger(__name__)

PENDING = 8  # checkpoints waiting to be written, which memory has to keep meanwhile; more are not kept on disk


def default_directory() -> Path:
    """Where sessions lie unless the user says otherwise: the XDG cache directory."""
    return cache_folder("sessions")


class SessionStore:
    """Session files in `directory`, at most `limit` bytes, of any number of models; the least useful go first.

    `attach` it to an engine. A thread of its own writes; all else happens in the caller's.
    """

    def __init__(self, directory: Path | None = None, limit: int = 16 << 30) -> None:
        self.directory = default_directory() if directory is None else directory
        self.limit = limit
        self.skipped = 0  # checkpoints that came faster than the disk takes them
        self._waiting: deque[Checkpoint] = deque()
        self._done: deque[Checkpoint] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def attach(self, layout: Layout, pool: PagePool) -> None:
        """Read the directory and start writing for one model. Raises MachineError where that can't be done."""
        self._layout, self._pool = layout, pool
        try:
            self._files = SessionDirectory(self.directory, layout)
        except OSError as error:
            raise MachineError(f"sessions can't be kept in {self.directory}: {error}") from error
        self._thread = threading.Thread(target=self._write_all, name="session store", daemon=True)
        self._thread.start()

    def figures(self) -> dict[str, int]:
        """Files of this model, bytes of all, their limit, and what was not written."""
        files = self._files
        return {"entries": files.count, "bytes": files.size, "budget": self.limit, "skipped": self.skipped}

    def find(self, ids: np.ndarray, beyond: int) -> int:
        """Length of the longest state whose tokens seem to begin `ids` (int32); 0 if none is longer than `beyond`."""
        entry = self._files.longest(ids)
        length = entry.header.position if entry is not None and entry.header is not None else 0
        return length if length > beyond else 0

    def load(self, ids: np.ndarray, known: Checkpoint | None = None) -> Saved | None:
        """The longest state on disk whose tokens begin `ids` and leave one to read.

        Pages that it shares with `known`, a checkpoint in memory, are held; the others are taken from the pool, which
        must have room. Files that are not what they claim to be are reported and used no more.
        """
        while (entry := self._files.longest(ids)) is not None:
            chain = self._files.chain(entry)
            pages: list[int] = []
            reading = entry
            try:
                if not chain:
                    raise DamagedFile("the file that holds its first pages is gone")
                for reading in reversed(self._beyond(known, chain, pages)):
                    saved = self._read(reading, ids, pages)
            except (DamagedFile, OSError) as error:
                log.warning("ignoring the session file %s: %s", reading.path, error)
                self._pool.pages.release(pages)
                self._files.distrust(reading)
            else:
                self._files.touch(chain)
                return saved
        return None

    def offer(self, checkpoint: Checkpoint) -> None:
        """Write it in the background. It is `busy` until `poll` finds it written."""
        with self._changed:
            if len(self._waiting) >= PENDING:
                self.skipped += 1
                return
            checkpoint.busy = True
            self._waiting.append(checkpoint)
            self._changed.notify_all()

    def poll(self) -> None:
        """Let go of checkpoints that were written meanwhile."""
        while self._done:
            self._done.popleft().busy = False

    def drain(self) -> None:
        """Wait until everything offered is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
        self.poll()

    def close(self) -> None:
        """Write what was offered, then stop."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        self.poll()

    def _beyond(self, known: Checkpoint | None, chain: list[Entry], pages: list[int]) -> list[Entry]:
        """The files of a chain that lie beyond a checkpoint in memory, whose pages then are the first `pages`."""
        for place, entry in enumerate(chain):
            if known is not None and entry.header is not None and entry.header.digest == known.digest and place > 0:
                self._pool.pages.hold(known.saved.pages)
                pages.extend(known.saved.pages)
                return chain[:place]
        return chain

    def _read(self, entry: Entry, ids: np.ndarray, pages: list[int]) -> Saved:
        """One file of a chain, on top of the pages of those before it."""
        with SessionFile(entry.path, self._layout) as file:
            header = file.header
            if header != entry.header or header.first_page > len(pages):
                raise DamagedFile("it changed")
            if not np.array_equal(file.tokens(), ids[: header.position]):
                raise DamagedFile("its tokens are not those of its name")
            fixed = file.fixed()
            self._pool.pages.release(pages[header.first_page :])
            del pages[header.first_page :]
            for batch in file.pages():
                taken = [self._pool.pages.take() for _ in batch]
                pages += taken
                self._pool.write(taken, batch)
        return Saved(header.position, header.draft_position, fixed, tuple(pages))

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                checkpoint = self._waiting[0]
            try:
                self._write(checkpoint)
            except OSError as error:
                log.warning("a session could not be written to %s: %s", self.directory, error)
            except Exception:
                log.exception("a session could not be written to %s", self.directory)
            with self._changed:
                self._done.append(self._waiting.popleft())
                self._changed.notify_all()

    def _write(self, checkpoint: Checkpoint) -> None:
        self._files.make_sure()
        if self._files.has(checkpoint.digest):
            return
        saved, layout = checkpoint.saved, self._layout
        chain = self._files.chain(self._files.longest(checkpoint.tokens))
        parent = chain[0].header if chain else None
        first = parent.full_pages if parent else 0
        header = Header(
            key=layout.key,
            digest=checkpoint.digest,
            parent=parent.digest if parent else NO_PARENT,
            position=saved.position,
            draft_position=saved.draft_position,
            parent_position=parent.position if parent else 0,
            page_tokens=layout.page_tokens,
            first_page=first,
            pages=len(saved.pages) - first,
            page_bytes=layout.page_bytes,
            fixed_bytes=layout.fixed_bytes,
            written=int(time.time()),
        )
        if header.file_bytes > self.limit:
            return
        self._files.make_room(header.file_bytes, self.limit, chain)
        new, path = saved.pages[first:], self._files.path(checkpoint.digest)
        batches = (self._pool.read(new[start : start + BATCH]) for start in range(0, len(new), BATCH))
        self._files.add(write_file(path, header, checkpoint.tokens, saved.content(), batches))
        self._files.touch(chain)
