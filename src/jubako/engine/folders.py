"""Where things lie that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of Jubako's in the user's cache directory (XDG's); it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "jubako" / name
