"""The directory of session files: which there are, what begins a prompt, what has to go."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .checkpoint import prefix_digests
from .file import NO_PARENT, DamagedFile, Header, Layout, read_header

log = logging.getLogger(__name__)

SUFFIX = ".session"
HALF_LIFE = 7 * 86400.0  # seconds in which a file that nobody uses loses half its worth


@dataclass
class Entry:
    """A file: its header (None: not one that can be read) and when it was last used."""

    path: Path
    size: int
    used: float
    header: Header | None


class SessionDirectory:
    """Session files of any number of models; `layout` is that of the one at work. Two threads may use it at once."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.directory, self.layout = directory, layout
        self._entries: dict[str, Entry] = {}  # by file name
        self.make_sure()
        for path in directory.iterdir():
            self._scan(path)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self._all())

    @property
    def count(self) -> int:
        """Files of the model at work."""
        return sum(entry.header is not None and entry.header.key == self.layout.key for entry in self._all())

    def make_sure(self) -> None:
        """Make the folder, which somebody may have removed with all that lay in it."""
        if not self.directory.is_dir():
            self._entries.clear()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: bytes) -> Path:
        return self.directory / f"{self.layout.key.hex()[:16]}-{digest.hex()}{SUFFIX}"

    def has(self, digest: bytes) -> bool:
        entry = self._entries.get(self.path(digest).name)
        return entry is not None and entry.header is not None

    def add(self, header: Header) -> None:
        """Take note of a file that was written."""
        path = self.path(header.digest)
        self._entries[path.name] = Entry(path, header.file_bytes, time.time(), header)

    def longest(self, ids: np.ndarray) -> Entry | None:
        """The longest file whose digest is that of the beginning of `ids` (int32), one token short at least."""
        headers = [entry.header for entry in self._all() if entry.header is not None]
        lengths = sorted({h.position for h in headers if h.key == self.layout.key and h.position < len(ids)})
        for length, digest in zip(reversed(lengths), reversed(prefix_digests(ids, lengths)), strict=True):
            entry = self._entries.get(self.path(digest).name)
            if entry is not None and entry.header is not None and entry.header.position == length:
                return entry
        return None

    def chain(self, entry: Entry | None) -> list[Entry]:
        """The file and those its pages continue, down to the first; empty where one is missing."""
        chain = []
        while entry is not None and entry.header is not None:
            chain.append(entry)
            if entry.header.parent == NO_PARENT:
                return chain
            child = entry.header
            entry = self._entries.get(self.path(child.parent).name)
            parent = entry.header if entry is not None else None
            # the length falls with every step, so two that name each other are no circle
            if parent is None or parent.position != child.parent_position or parent.full_pages < child.first_page:
                break
        return []

    def touch(self, chain: list[Entry]) -> None:
        """These were used now, and will be known as such after a restart."""
        for entry in chain:
            entry.used = time.time()
            try:
                os.utime(entry.path)
            except OSError:
                continue  # deleted meanwhile

    def distrust(self, entry: Entry) -> None:
        """Use the file no more. Its bytes still count, and it is the first to go."""
        self._entries.pop(entry.path.name, None)
        if entry.path.exists():
            self._entries[entry.path.name] = Entry(entry.path, entry.size, 0.0, None)

    def make_room(self, size: int, limit: int, needed: list[Entry]) -> None:
        """Delete the least useful files until `size` more bytes stay within `limit`.

        Never one that another builds on, nor one of `needed`.
        """
        now = time.time()
        kept = {entry.path.name for entry in needed}
        while self.size + size > limit:
            entries = self._all()
            parents = {(e.header.key, e.header.parent) for e in entries if e.header is not None}
            leaves = [
                entry
                for entry in entries
                if entry.path.name not in kept
                and (entry.header is None or (entry.header.key, entry.header.digest) not in parents)
            ]
            if not leaves:
                return
            least = min(leaves, key=lambda entry: _worth(entry, now))
            least.path.unlink(missing_ok=True)
            self._entries.pop(least.path.name, None)

    def _all(self) -> list[Entry]:
        return list(self._entries.values())  # a copy: the other thread adds and removes

    def _scan(self, path: Path) -> None:
        """Take note of a file as it lies there; remove what an unfinished write left."""
        if path.suffix == ".tmp" and SUFFIX in path.name:
            if not _alive(path.name.split(".")[-2]):
                path.unlink(missing_ok=True)
            return
        if path.suffix != SUFFIX or not path.is_file():
            return
        header = None
        try:
            header = read_header(path)
            if header.key == self.layout.key:
                header.check(path.stat().st_size, self.layout)
                if path != self.path(header.digest):
                    raise DamagedFile("its name is not that of its tokens")
        except (DamagedFile, OSError) as error:
            log.warning("ignoring the session file %s: %s", path, error)
            header = None
        try:
            stat = path.stat()
        except OSError:
            return  # deleted meanwhile
        self._entries[path.name] = Entry(path, stat.st_size, stat.st_mtime, header)


def _worth(entry: Entry, now: float) -> float:
    """Tokens that only this file spares reading, per byte, less the older it is."""
    if entry.header is None:
        return 0.0
    spared = entry.header.position - entry.header.parent_position
    return float(spared / entry.size * 0.5 ** ((now - entry.used) / HALF_LIFE))


def _alive(process: str) -> bool:
    return process.isdigit() and Path("/proc", process).exists()
