"""Main memory that this process may take: what the system has free, and what its container allows."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
KEEP_FREE = 10  # one part in so many of the memory is never taken: the machine stays usable
_UNLIMITED = 1 << 60  # version 1 writes such a number where there is no limit


def total_memory() -> int:
    """Bytes of the machine, or of its container where that is less."""
    total: list[int] = [psutil.virtual_memory().total, *(limit for limit, _ in limits())]
    return min(total)


def free_memory() -> int:
    """Bytes that can still be taken before the system, or a container around this process, has none left."""
    room: list[int] = [psutil.virtual_memory().available, *(max(limit - used, 0) for limit, used in limits())]
    return min(room)


def usable_memory() -> int:
    """Of the free bytes, those that a plan may take."""
    return max(free_memory() - total_memory() // KEEP_FREE, 0)


def limits(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[tuple[int, int]]:
    """(limit, used) in bytes of each control group with a memory limit around this process, both versions of them.

    File pages that the kernel can drop at once do not count as used.
    """
    found = []
    for folder in _folders(root, own):
        limit, used = _number(folder, "memory.max"), _number(folder, "memory.current")
        if limit is None or used is None:
            limit, used = _number(folder, "memory.limit_in_bytes"), _number(folder, "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            found.append((limit, max(used - _inactive_file(folder), 0)))
    return found


def _folders(root: Path, own: Path) -> list[Path]:
    """The group's folders from the process's own up to the root. In a container its group is often mounted as root."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        inner = top / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder == top or top in folder.parents]
    return folders


def _number(folder: Path, name: str) -> int | None:
    """None where there is no such file or no limit ("max")."""
    try:
        text = (folder / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _inactive_file(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(counts.get("inactive_file", 0))
