"""Which model a saved state belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

HEADER = 1 << 20  # bytes hashed at the start of each file
SAMPLES, SAMPLE = 64, 4096  # and spread over the rest of it


def model_key(paths: Sequence[Path], layout: str) -> bytes:
    """32 bytes from the files' sizes, their headers and samples of their data, and how the engine lays out states."""
    digest = sha256(layout.encode())
    for path in paths:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with open(path, "rb") as file:
            digest.update(file.read(HEADER))
            for sample in range(SAMPLES):
                file.seek(size * sample // SAMPLES)
                digest.update(file.read(SAMPLE))
    return digest.digest()
