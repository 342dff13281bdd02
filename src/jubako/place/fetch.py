"""One file over HTTP: resumed where it broke off, never trusted before its checksum is right.

.NAME.DIGEST.part     what has come so far, beside the place where the file will lie; renamed when all is well
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MachineError, RequestError
from .sizes import size_text

if TYPE_CHECKING:
    import httpx

PIECE = 1 << 20
ATTEMPTS = 5  # in a row that bring nothing new
PAUSE = 1.0  # seconds before the second attempt; doubled each time
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
Progress = Callable[[int], None]  # bytes that are newly there; negative when some are thrown away


@dataclass(frozen=True)
class Remote:
    """A file to fetch. sha256 of its content; or blob, the SHA-1 that git gives it, for small files without one."""

    url: str
    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    def digest(self) -> Any:
        """A hash that has seen nothing of the content yet."""
        if self.sha256 or not self.blob:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)

    def is_right(self, digest: Any) -> bool:
        wanted = self.sha256 or self.blob
        return wanted is None or digest.hexdigest() == wanted.lower()

    def part(self, folder: Path) -> Path:
        """Where an unfinished one lies; another content has another name."""
        return folder / f".{self.name}.{(self.sha256 or self.blob or str(self.size))[:12]}.part"


class _Broken(Exception):
    """This attempt has come to its end, and why; another may go on."""


def left_to_fetch(file: Remote, folder: Path) -> int:
    """Bytes that are not here yet."""
    target, part = folder / file.name, file.part(folder)
    if target.exists() and target.stat().st_size == file.size:
        return 0
    return file.size - (min(part.stat().st_size, file.size) if part.exists() else 0)


def fetch(client: httpx.Client, file: Remote, folder: Path, progress: Progress = lambda count: None) -> Path:
    """The file, whole and right, in the folder. One that is there already is checked, not fetched.

    Raises RequestError for a file that the server does not give, MachineError where it fails for good.
    """
    target, part = folder / file.name, file.part(folder)
    if target.exists():
        if target.stat().st_size == file.size and file.is_right(_hash(file, target)):
            progress(file.size)
            return target
        raise MachineError(f"{target} is there with another content than the repository's; move it away first")
    damaged = False
    while True:
        _complete(client, file, part, progress)
        if file.is_right(_hash(file, part)):
            break
        part.unlink()
        progress(-file.size)
        if damaged:
            raise MachineError(
                f"{file.name} came twice with a wrong checksum; the server, the way or the disk damages it"
            )
        damaged = True
    part.replace(target)
    return target


def _complete(client: httpx.Client, file: Remote, part: Path, progress: Progress) -> None:
    """Bring the unfinished file to its full size, in as many attempts as bring something."""
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    progress(part.stat().st_size if part.exists() else 0)
    failures = 0
    while not part.exists() or part.stat().st_size < file.size:
        before = part.stat().st_size if part.exists() else 0
        try:
            _attempt(client, file, part, progress)
            reason = "the server ended before the file did"
        except _Broken as broken:
            reason = str(broken)
        except OSError as error:
            raise MachineError(
                f"{part.parent}: {file.name} can't be written: {error.strerror or error}; "
                f"{size_text(before)} of {size_text(file.size)} are kept for the next try"
            ) from error
        now = part.stat().st_size if part.exists() else 0
        failures = 0 if now > before else failures + 1
        if now < file.size and failures == ATTEMPTS:
            raise MachineError(
                f"{file.name} can't be fetched: {reason}; {size_text(now)} of {size_text(file.size)} are kept, "
                "and the same command goes on from there"
            )
        if now < file.size and failures:
            time.sleep(PAUSE * 2 ** (failures - 1))


def _attempt(client: httpx.Client, file: Remote, part: Path, progress: Progress) -> None:
    """One request; its bytes go to the end of the unfinished file."""
    import httpx

    start = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"} if start else {"Accept-Encoding": "identity"}
    try:
        with client.stream("GET", file.url, headers=headers) as response:
            start = _start_of(file, response, start, part, progress)
            with part.open("r+b" if start else "wb") as out:
                out.seek(start)
                for piece in _pieces(response, file.size - start):
                    out.write(piece)
                    progress(len(piece))
                out.flush()
                os.fsync(out.fileno())
    except httpx.HTTPError as error:
        raise _Broken(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _start_of(file: Remote, response: httpx.Response, asked: int, part: Path, progress: Progress) -> int:
    """Where the answer's bytes belong. What is there is thrown away where the server does not go on from it."""
    status = response.status_code
    if status in (401, 403):
        raise RequestError(f"{file.name}: the server wants an account that may read it; set HF_TOKEN to its token")
    if status == 404:
        raise RequestError(f"{file.name}: the server does not have it any more")
    if status not in (200, 206, 416):
        raise _Broken(f"the server answered {status}")
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if status == 206 and match and int(match[1]) == asked and int(match[3]) == file.size:
        return asked
    if asked:  # all of it again, the wrong piece, or none: begin anew
        part.unlink()
        progress(-asked)
    if status == 200:
        return 0
    raise _Broken("the server gave another piece of the file than was asked for")


def _pieces(response: httpx.Response, wanted: int) -> Iterator[bytes]:
    """The answer's bytes, never more than wanted."""
    for piece in response.iter_bytes():  # as they come: what came before a break counts
        if len(piece) > wanted:
            yield piece[:wanted]
            return
        wanted -= len(piece)
        yield piece


def _hash(file: Remote, path: Path) -> Any:
    """The digest of what lies there."""
    digest = file.digest()
    with path.open("rb") as stored:
        while piece := stored.read(PIECE):
            digest.update(piece)
    return digest
