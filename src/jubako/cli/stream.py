"""Streaming an answer to the terminal, and the line of figures after it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..core import GenerationStats, SamplingParams
from ..engine.draft import DraftOptions
from ..engine.model import Model
from ..engine.session import Session

WHAT_PAYS = DraftOptions()


def stream_answer(
    model: Model,
    prompt: Sequence[int],
    params: SamplingParams,
    max_tokens: int,
    session: Session | None = None,
    drafts: DraftOptions = WHAT_PAYS,
) -> tuple[str, GenerationStats]:
    """Write the answer to standard output as it comes; the whole text and its figures. Ctrl-C ends the answer early."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("Reading the prompt"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("", total=len(prompt))
    generation = model.generate(
        prompt,
        max_tokens=max_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        seed=params.seed,
        drafts=drafts.most,
        draft_floor=drafts.floor,
        session=session,
        progress=lambda read: bar.update(task, completed=read),
    )
    pieces: list[str] = []
    shown = console.is_terminal and len(prompt) > 256
    if shown:
        bar.start()
    try:
        with _BetweenTokens() as interrupt:
            for token in generation:
                if shown:
                    bar.stop()
                    shown = False
                pieces.append(token.text)
                _write(token.text)
                interrupt.after_token()
        pieces.append(generation.rest)
        _write(generation.rest)
    except KeyboardInterrupt:
        generation.close()
        generation.stats.finish_reason = "interrupted"
    finally:
        if shown:
            bar.stop()
    _write("\n")
    return "".join(pieces), generation.stats


class _BetweenTokens:
    """Holds Ctrl-C back until the token at work is out, so that the session stays whole and need not be read again.

    While the prompt is read, and when pressed twice, Ctrl-C acts at once.
    """

    def __enter__(self) -> _BetweenTokens:
        self._decoding = self._asked = False
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def after_token(self) -> None:
        self._decoding = True
        if self._asked:
            raise KeyboardInterrupt

    def _pressed(self, *_: object) -> None:
        if not self._decoding or self._asked:
            raise KeyboardInterrupt
        self._asked = True


def figures(stats: GenerationStats) -> str:
    """One line: tokens, speed and why it ended."""
    read = stats.prompt_tokens - stats.cached_tokens
    prefill = f"{read / stats.prefill_seconds:.1f} tok/s" if stats.prefill_seconds else "-"
    drafts = f", {stats.tokens_per_step:.2f} tokens/step" if stats.drafted else ""
    cached = f", {stats.cached_tokens} cached" if stats.cached_tokens else ""
    return (
        f"prompt {stats.prompt_tokens} tokens{cached}, {prefill} · answer {stats.generated_tokens} tokens, "
        f"{stats.tokens_per_second:.1f} tok/s, {stats.ms_per_step:.2f} ms/step{drafts} · {stats.finish_reason}"
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
