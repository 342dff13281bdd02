"""What drafts gain on real text: the same answers with drafts and without, in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ..core import GenerationStats
from ..engine.model import Model
from ..errors import JubakoError

KINDS = ("prose", "code", "dialogue")
PROMPTS = Path(__file__).parent / "prompts"  # a file for each kind: own text, and the first lines of old books


@dataclass(frozen=True)
class DraftRates:
    """One kind of text, all its prompts together; milliseconds are sums of each prompt's median.

    most, fixed, floor    what was asked for (`engine.draft.DraftOptions`)
    plain_ms, ms          of a step without drafts, which gives one token, and with them
    draft_ms              the part of `ms` that proposing took
    tokens_per_step       with drafts
    drafted, accepted     drafts verified and accepted, by their place in the step
    speed_up              tokens per second with drafts over those without
    """

    kind: str
    most: int | None
    fixed: bool
    floor: float
    tokens: int
    plain_ms: float
    ms: float
    draft_ms: float
    tokens_per_step: float
    speed_up: float
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


def measure_drafts(
    model: Model,
    most: int | None,
    fixed: bool = False,
    floor: float = 0.0,
    temperature: float = 0.7,
    tokens: int = 128,
    repeat: int = 3,
    note: Callable[[str], None] = lambda text: None,
) -> list[DraftRates]:
    """`tokens` tokens after each prompt, `repeat` times with drafts and without, at top_p 0.95.

    Raises JubakoError if a text differs.
    """
    return [_measure(model, kind, most, fixed, floor, temperature, tokens, repeat, note) for kind in KINDS]


def prompts(model: Model, kind: str) -> list[list[int]]:
    """The prompts of a kind as token ids; dialogue goes through the chat template."""
    texts = (PROMPTS / f"{kind}.txt").read_text(encoding="utf-8").split("\n=====\n")
    if kind == "dialogue":
        return [model.encode_chat([{"role": "user", "content": text.strip()}], enable_thinking=True) for text in texts]
    return [model.encode(text.rstrip("\n") if kind == "prose" else text) for text in texts]


def _measure(
    model: Model,
    kind: str,
    most: int | None,
    fixed: bool,
    floor: float,
    temperature: float,
    tokens: int,
    repeat: int,
    note: Callable[[str], None],
) -> DraftRates:
    plain = drafted = 0.0
    runs: list[GenerationStats] = []
    for number, prompt in enumerate(prompts(model, kind), 1):
        note(f"drafts: {kind} {number}")
        without: list[GenerationStats] = []
        having: list[GenerationStats] = []
        for _ in range(repeat):
            texts = []
            for stats, options in ((without, {"drafts": 0}), (having, {"drafts": most, "fixed_drafts": fixed})):
                session = model.session(min(model.context, len(prompt) + tokens))
                generation = model.generate(
                    prompt,
                    max_tokens=tokens,
                    temperature=temperature,
                    top_p=0.95,
                    seed=number,
                    session=session,
                    draft_floor=floor,
                    **options,  # type: ignore[arg-type]
                )
                texts.append(list(generation))
                stats.append(generation.stats)
            if texts[0] != texts[1]:
                raise JubakoError(f"drafts changed the text of prompt {number} of {kind}")
        plain += 1000 * median(stats.decode_seconds for stats in without)
        drafted += 1000 * median(stats.decode_seconds for stats in having)
        runs.append(having[-1])
    read = sum(stats.generated_tokens - 1 for stats in runs)
    steps = max(1, sum(stats.steps for stats in runs))
    return DraftRates(
        kind,
        most,
        fixed,
        floor,
        tokens=sum(stats.generated_tokens for stats in runs),
        plain_ms=plain / max(1, read),
        ms=drafted / steps,
        draft_ms=1000 * sum(stats.draft_seconds for stats in runs) / steps,
        tokens_per_step=read / steps,
        speed_up=plain / drafted if drafted else 1.0,
        drafted=_sums([stats.drafted for stats in runs]),
        accepted=_sums([stats.accepted for stats in runs]),
    )


def _sums(rows: list[list[int]]) -> list[int]:
    """Column sums of rows of different lengths."""
    return [sum(row[place] for row in rows if place < len(row)) for place in range(max(map(len, rows), default=0))]
