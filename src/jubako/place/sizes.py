"""Sizes as people write them."""

from __future__ import annotations

import re

from ..errors import RequestError

_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.I)


def parse_size(text: str, name: str = "size") -> int:
    """Bytes of "24G", "512 MB", "1.5GiB" or "4096". Raises RequestError, which calls the value `name`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise RequestError(f"{name} is {text!r:.50}; a size like 24G, 512M or 1.5GiB was expected")
    number, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " ")
    return int(float(number) * scale)


def size_text(bytes: float) -> str:
    """Bytes as people read them: 1.23 TB, 12.3 GB, 456 MB, 7 kB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if abs(bytes) >= 0.9995 * scale:
            value = bytes / scale
            digits = 0 if value >= 99.95 or unit == "MB" else 2 if unit == "TB" else 1
            return f"{value:.{digits}f} {unit}"
    return f"{bytes / 1e3:.0f} kB"
