"""Fetching a published model: what is in its repository, whether the disk has room, and each file in turn."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath

from ..errors import MachineError, RequestError
from .fetch import Remote, fetch, left_to_fetch
from .known import Known, find
from .sizes import size_text

ENDPOINT = "https://huggingface.co"
MARGIN = 1 << 30  # bytes that stay free on the disk
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
Progress = Callable[[str, int], None]  # file name, and bytes that are newly there


@dataclass(frozen=True)
class Source:
    """Where to look: a repository, patterns of the files wanted, and the published model it is, if it is one."""

    repository: str
    patterns: tuple[str, ...]
    known: Known | None = None


def source_of(name: str, draft: bool = True) -> Source:
    """The source that a name means: one of `known.MODELS`, or "owner/repository[:pattern]".

    Raises RequestError for anything else.
    """
    if "/" in name:
        repository, _, pattern = name.partition(":")
        if not _REPOSITORY.fullmatch(repository):
            raise RequestError(f"{name!r:.100}: owner/repository[:pattern] was expected, such as me/model:*Q4_K*.gguf")
        return Source(repository, (pattern or "*",))
    known = find(name)
    extra = (known.draft,) if known.draft and draft else ()
    return Source(known.repository, (known.pattern, *extra), known)


def list_files(source: Source, revision: str | None = None) -> list[Remote]:
    """The files of the source as the repository lists them, in the order of their names.

    Raises RequestError where there is no such repository, none of its files fits, or parts of a set are missing.
    """
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    where = f"{source.repository} at {endpoint}"
    try:
        info = HfApi(endpoint=endpoint).model_info(
            source.repository, revision=revision, files_metadata=True, timeout=30
        )
    except GatedRepoError as error:
        raise RequestError(f"{where} asks for an account that may read it; set HF_TOKEN to its token") from error
    except RevisionNotFoundError as error:
        raise RequestError(f"{where} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise RequestError(f"{where}: there is no such repository, or HF_TOKEN is needed to see it") from error
    except HfHubHTTPError as error:
        raise MachineError(f"{where} can't be listed: the server answered {error.response.status_code}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MachineError(f"{where} can't be listed: {_first_line(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith(("http", "requests", "urllib3")):  # whichever the hub's version uses
            raise
        raise MachineError(f"{where} can't be reached: {_first_line(error)}") from error
    found = []
    for item in info.siblings or ():
        name = item.rfilename
        if not any(fnmatchcase(name, p) or fnmatchcase(PurePosixPath(name).name, p) for p in source.patterns):
            continue
        url = hf_hub_url(source.repository, name, revision=info.sha or revision, endpoint=endpoint)
        sha256 = item.lfs.sha256 if item.lfs else None
        size = item.lfs.size if item.lfs else item.size
        if size is None or not _sane(name):
            raise MachineError(f"{where} lists {name!r:.100} without a size, or under a name that can't be a file's")
        found.append(Remote(url, PurePosixPath(name).name, size, sha256, item.blob_id if sha256 is None else None))
    found.sort(key=lambda file: file.name)
    if not found:
        raise RequestError(f"{where} has no file like {' or '.join(source.patterns)}")
    _check_names(where, source, [item.rfilename for item in info.siblings or ()], [file.name for file in found])
    _check_set(where, [file.name for file in found])
    return found


def check_room(files: Sequence[Remote], folder: Path) -> int:
    """Bytes still to be fetched. Raises MachineError where the disk lacks the room for them."""
    needed = sum(left_to_fetch(file, folder) for file in files)
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise MachineError(
            f"{folder}: {size_text(needed)} are to be fetched and {size_text(free)} are free "
            f"({size_text(MARGIN)} stay so); make room, or name another folder with --to"
        )
    return needed


def pull(files: Sequence[Remote], folder: Path, progress: Progress = lambda name, count: None) -> list[Path]:
    """Fetch the files, one after the other; where they lie now. What broke off is taken up again by the next call.

    Raises MachineError for a server or a disk that fails for good.
    """
    import httpx
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = {
        key: value for key, value in build_hf_headers().items() if key.lower() in ("authorization", "user-agent")
    }
    with _alone(folder), httpx.Client(follow_redirects=True, timeout=httpx.Timeout(30.0), headers=headers) as client:
        return [fetch(client, file, folder, partial(progress, file.name)) for file in files]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else pulls into the folder meanwhile: two would write to one unfinished file. Raises MachineError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MachineError(f"{folder}: another jubako pull is at work there; wait for it, or end it") from error
        except OSError:  # file systems of a network that know no locks
            pass
        yield
    finally:
        os.close(handle)


def _sane(name: str) -> bool:
    """Whether a name from a server can be a file's name here."""
    last = PurePosixPath(name).name
    return bool(last) and last not in (".", "..") and last.isprintable() and "\\" not in last and len(last) < 200


def _check_names(where: str, source: Source, listed: Sequence[str], names: Sequence[str]) -> None:
    """Files of several folders come into one: no two may have one name."""
    twice = next((name for name, after in pairwise(names) if name == after), None)
    if twice is not None:
        both = " and ".join([path for path in listed if PurePosixPath(path).name == twice][:2])
        raise RequestError(
            f"{where} has {both}, which would be one file here; choose with {source.repository}:FOLDER/*"
        )


def _check_set(where: str, names: Sequence[str]) -> None:
    """Every part of a split set has to be there."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _PART.fullmatch(name):
            sets.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, count), parts in sets.items():
        missing = sorted(set(range(1, count + 1)) - parts)
        if missing:
            raise RequestError(f"{where} lacks part {missing[0]} of {count} of {stem}")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
