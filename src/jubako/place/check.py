"""Whether a plan is one to be happy with: fits, tight, or does not fit, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .plan import Plan
from .sizes import size_text

Verdict = Literal["fits", "tight", "does not fit"]
ROOM_TO_WORK = 32_768  # tokens of context below which long documents and agents have a hard time


@dataclass(frozen=True)
class Judgement:
    """A verdict, and its reason in a few words; for "fits" what limits the speed."""

    verdict: Verdict
    why: str


def judge(plan: Plan, context_wanted: int = ROOM_TO_WORK) -> Judgement:
    """Tight means that experts come from the SSD while running, or that the context is short."""
    if plan.short:
        return Judgement("does not fit", plan.short)
    ssd = plan.box("SSD").bytes_of("experts")
    if ssd:
        return Judgement("tight", f"{size_text(ssd)} of experts are read from the SSD")
    if plan.context < context_wanted:
        return Judgement("tight", f"the context is only {plan.context:,} tokens")
    where = "everything in VRAM" if plan.resident else "experts in RAM" if plan.cards else "all of it in RAM"
    limit = f", limited by {plan.speed.flat.limit.name}" if plan.speed else ""
    return Judgement("fits", where + limit)
