"""`jubako run`: one prompt, one answer."""

from __future__ import annotations

from rich.console import Console

from ..core import SamplingParams
from ..engine.draft import DraftOptions
from ..engine.model import Model
from .stream import figures, stream_answer


def run(
    prompt: str,
    model: Model,
    params: SamplingParams,
    max_tokens: int,
    raw: bool,
    think: bool,
    system: str | None,
    drafts: DraftOptions,
) -> None:
    """Stream the answer to standard output; figures go to standard error."""
    if raw:
        ids = model.encode(prompt)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        ids = model.encode_chat(messages, enable_thinking=think)
    _, stats = stream_answer(model, ids, params, max_tokens, drafts=drafts)
    Console(stderr=True).print(figures(stats), style="dim", highlight=False, soft_wrap=True)
    if stats.finish_reason == "interrupted":
        raise KeyboardInterrupt
