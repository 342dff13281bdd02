"""`jubako serve`: the server with its page, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..place.plan import Wish
from ..serve.config import Config, collect_keys
from ..serve.main import serve as run
from ..serve.protocol import Start
from .fitting import look_ahead
from .open import NOTE, small_model


def serve(
    files: Sequence[Path],
    host: str,
    port: int | None,
    api_keys: Sequence[str],
    api_key_file: Path | None,
    hosts: Sequence[str],
    origins: Sequence[str],
    name: str | None,
    device: str,
    threads: int | None,
    kv_bits: int,
    context: int | None,
    ram: int | None,
    gpus: tuple[int, ...] | None,
    vram: int | None,
    split: str,
    sequences: int,
    drafts: int | None,
    prefix_gb: float | None,
    sessions: Path | None,
    sessions_gb: float,
    waiting: int,
    max_body: int,
    grace: int,
    log_level: str,
    log_prompts: bool,
    open_page: bool,
) -> None:
    """Serve the files, or the small model where none is named."""
    if not files:
        files = small_model()
        print(NOTE, file=sys.stderr)
    wish = Wish(context, vram, ram, sequences=sequences, gpus=gpus, kv_bits=kv_bits, threads=threads)
    if line := look_ahead(files, device, wish):
        print(line, file=sys.stderr)
    run(
        Config(
            Start(
                tuple(str(file) for file in files),
                device,
                threads,
                kv_bits,
                context,
                sequences,
                drafts,
                None if prefix_gb is None else int(prefix_gb * 1e9),
                sessions=str(sessions.absolute()) if sessions else None,
                sessions_bytes=int(sessions_gb * 1e9),
                ram=ram,
                gpus=gpus,
                vram=vram,
                split=split,
            ),
            host=host,
            port=port,
            keys=collect_keys(api_keys, api_key_file),
            hosts=frozenset(host.lower() for host in hosts),
            origins=frozenset(origin.rstrip("/") for origin in origins),
            name=name,
            waiting=waiting,
            body=max_body << 20,
            grace=grace,
            log_level=log_level,
            log_prompts=log_prompts,
            open_page=open_page,
        )
    )
