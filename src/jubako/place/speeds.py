"""A plan's predicted speeds: the formulas of `predict` on what the plan holds where."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .census import Census
from .factors import APART, CALIBRATED, Factors
from .machine import CardRates, Machine
from .plan import Plan
from .predict import Holding, card_step, chunks, cpu_prompt, cpu_step, draft_pass
from .predict_prompt import card_prompt
from .routing import Popularity, flat, skewed
from .speed import Estimate, Speed, Term

PROMPTS = (512, 8192, 65536)
MOST_DRAFTS = 4
KEPT = 0.6  # of drafts, each given that those before it were right: what the shipped draft layer keeps in prose
# (docs/model-card.md); real ones must be measured


def speeds(census: Census, machine: Machine, plan: Plan, depth: int = 0) -> Speed:
    """Predictions for decoding after `depth` tokens, and for prompts."""
    config = census.config
    even, uneven = flat(config.experts, config.experts_used), skewed(config.experts, config.experts_used)
    prompts = {n: prompt(census, machine, plan, even, n) for n in PROMPTS if n <= max(plan.context, PROMPTS[0])}
    drafted, drafts = _drafted(census, machine, plan, uneven, depth)
    return Speed(
        flat=step(census, machine, plan, even, depth),
        skewed=step(census, machine, plan, uneven, depth),
        prompts=prompts,
        drafted=drafted,
        drafts=drafts,
        limits={
            "flat": step(census, machine, plan, even, depth, factors=APART).rate,
            "skewed": step(census, machine, plan, uneven, depth, factors=APART).rate,
            **{tokens: prompt(census, machine, plan, even, tokens, APART).rate for tokens in prompts},
        },
    )


def step(
    census: Census, machine: Machine, plan: Plan, popularity: Popularity, depth: int = 0, columns: int = 1,
    factors: Factors = CALIBRATED,
) -> Estimate:  # fmt: skip
    """A step of `columns` columns."""
    held = holding(census, plan)
    if plan.device == "cuda":
        return _together(
            machine, plan, lambda card: card_step(census, machine, card, held, popularity, depth, columns, factors)
        )
    return cpu_step(census, machine, held, popularity, depth, columns, factors)


def holding(census: Census, plan: Plan) -> Holding:
    """Where the plan leaves experts."""
    count = census.config.experts
    ram = plan.ram_experts if plan.expert_ram else (count,) * len(plan.slots)
    near = plan.kv_tokens_vram if plan.kv_tokens_vram < plan.kv_tokens else None
    return Holding(plan.slots, ram, plan.threads, plan.kv_bits, near)


def prompt(
    census: Census, machine: Machine, plan: Plan, popularity: Popularity, tokens: int, factors: Factors = CALIBRATED
) -> Estimate:
    """A prompt of so many tokens, from an empty context."""
    held = holding(census, plan)
    if plan.device == "cuda":
        pieces = len(chunks(tokens, plan.chunk))
        return _together(
            machine, plan,
            lambda card: card_prompt(census, machine, card, held, popularity, tokens, plan.chunk, factors), pieces,
        )  # fmt: skip
    return cpu_prompt(census, machine, held, popularity, tokens, plan.chunk, factors)


def _together(machine: Machine, plan: Plan, of: Callable[[CardRates], Estimate], pieces: int = 1) -> Estimate:
    """Of all the plan's cards, each with its share of what `of` says of one that had all layers.

    A card reads a piece of a prompt while the one before reads the next.
    """
    estimates = [of(machine.cards[card.index]) for card in plan.cards]
    if len(estimates) == 1:
        return estimates[0]
    layers = [card.last - card.first for card in plan.cards]
    shares = [count / sum(layers) for count in layers]
    each = [share * estimate.seconds / pieces for share, estimate in zip(shares, estimates, strict=True)]
    beside = 1 - (sum(each) + (pieces - 1) * max(each)) / (pieces * sum(each))
    return Estimate(estimates[0].tokens, _joined(shares, estimates, beside), estimates[0].hit_rate)


def _joined(shares: Sequence[float], estimates: Sequence[Estimate], beside: float) -> tuple[Term, ...]:
    """The cards' terms by name; of what shows of each so much is hidden beside another card's work."""
    joined: dict[str, Term] = {}
    for share, estimate in zip(shares, estimates, strict=True):
        for term in estimate.terms:
            hidden = share * (term.hidden + beside * (term.seconds - term.hidden))
            known = joined.get(term.name, Term(term.name, 0.0, term.why))
            joined[term.name] = Term(term.name, known.seconds + share * term.seconds, known.why, known.hidden + hidden)
    return tuple(joined.values())


def _drafted(
    census: Census, machine: Machine, plan: Plan, popularity: Popularity, depth: int
) -> tuple[Estimate | None, int]:
    """The number of drafts that gives most, and its estimate; (None, 0) where none gains."""
    if not census.draft or plan.device != "cuda":
        return None, 0
    card = machine.cards[plan.cards[-1].index]
    best: Estimate | None = None
    chosen = 0
    plain = step(census, machine, plan, popularity, depth).rate
    each = draft_pass(census, machine, card, holding(census, plan), popularity)
    for drafts in range(1, MOST_DRAFTS + 1):
        verify = step(census, machine, plan, popularity, depth, drafts + 1)
        kept = sum(KEPT**i for i in range(drafts + 1))
        term = Term("drafting", drafts * each, f"{drafts} passes of the draft layer")
        estimate = Estimate(kept, (*verify.terms, term), verify.hit_rate)
        if estimate.rate > max(plain, best.rate if best else 0.0):
            best, chosen = estimate, drafts
    return best, chosen
