"""Where things lie that can be made again."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def cache_folder(name: str = "") -> Path:
    """A folder of Jubako's in the user's cache directory (XDG's, or JUBAKO_CACHE); it may not exist yet.

    A user without a home, as containers have them, has none that could be made.
    """
    cache = os.environ.get("JUBAKO_CACHE") or os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        try:
            cache = str(Path.home() / ".cache")
        except RuntimeError:
            cache = "/nonexistent/.cache"
    return Path(cache) / "jubako" / name


def may_write(folder: Path) -> bool:
    """Whether files can be made there; the folder is made, for its owner alone, where it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def kernel_folder() -> Path:
    """Where compiled kernels are kept; where nothing can be, a folder for this process alone."""
    folder = cache_folder("kernels")
    if may_write(folder):
        return folder
    log.warning("compiled kernels are not kept for the next start: %s can't be written to", folder)
    return Path(tempfile.mkdtemp(prefix="jubako-kernels-"))
