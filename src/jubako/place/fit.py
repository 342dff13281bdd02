"""`make_plan`: which bytes go into which box, and how fast that will be. No byte is loaded for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from .census import Census
from .fit_card import plan_cards
from .fit_cpu import plan_cpu
from .machine import Machine
from .plan import Box, Plan, Wish
from .shares import Short, ram_limit, ssd_box
from .speeds import speeds


def make_plan(census: Census, machine: Machine, wish: Wish | None = None) -> Plan:
    """The plan for this machine: on its cards if they can hold what every token reads, else on the CPU.

    A plan that can't be kept has `short` set, in words that say what is missing; nothing else of it counts then.
    """
    wish = wish or Wish()
    notes: tuple[str, ...] = ()
    try:
        if cards := _cards(machine, wish):
            try:
                return _predicted(census, machine, _on_cards(census, machine, wish, cards))
            except Short as short:
                if wish.gpus:
                    raise
                notes = (f"The GPU is not used: {short}.",)
        if wish.vram is not None and not machine.cards:
            notes = ("There is no GPU: the limit on video memory means nothing.",)
        plan = plan_cpu(census, machine, wish)
        return _predicted(census, machine, replace(plan, notes=(*notes, *plan.notes)))
    except Short as short:
        return _nothing(census, machine, wish, str(short), notes)


def _cards(machine: Machine, wish: Wish) -> tuple[int, ...]:
    """Numbers of the cards that may be used. Raises Short for one that is not there."""
    if wish.gpus is None:
        return tuple(range(len(machine.cards)))
    for number in wish.gpus:
        if not 0 <= number < len(machine.cards):
            count = len(machine.cards)
            raise Short(
                f"GPU {number} was asked for and there is {'none' if not count else f'{count}, counted from 0'}"
            )
    return wish.gpus


def _on_cards(census: Census, machine: Machine, wish: Wish, cards: tuple[int, ...]) -> Plan:
    """All of them if they hold it together; else the one with most memory free if that does; else all with main memory,
    or that one with main memory and the SSD."""
    if len(cards) == 1:
        return plan_cards(census, machine, wish, cards)
    largest = max(cards, key=lambda number: machine.cards[number].free)
    plans = []
    for few in (cards, (largest,)):
        with suppress(Short):
            plans.append(plan_cards(census, machine, wish, few))
    for plan in (*filter(lambda plan: plan.resident, plans), *filter(_shared, plans)):
        return plan
    plan = plan_cards(census, machine, wish, (largest,))
    note = f"The {len(cards)} GPUs and main memory do not hold it all: of them GPU {largest} is used."
    return replace(plan, notes=(note, *plan.notes))


def _shared(plan: Plan) -> bool:
    """Whether several cards can have the layers: each has some, and what lies in no slot lies in main memory."""
    return len(plan.cards) > 1 and not plan.reads_ssd and all(card.last - card.first > 1 for card in plan.cards)


def _predicted(census: Census, machine: Machine, plan: Plan) -> Plan:
    """With its speeds, where rates were measured: others promise nothing."""
    return replace(plan, speed=speeds(census, machine, plan)) if machine.measured else plan


def _nothing(census: Census, machine: Machine, wish: Wish, short: str, notes: tuple[str, ...]) -> Plan:
    """A plan that says why there is none."""
    none = (0,) * len(census.experts)
    limit = ram_limit(machine, wish)
    return Plan(
        device="cpu",
        cards=(),
        context=0,
        sequences=wish.sequences,
        kv_bits=wish.kv_bits,
        kv_tokens=0,
        kv_tokens_vram=0,
        slots=none,
        ram_experts=none,
        ram=limit,
        expert_ram=0,
        ring=0,
        chunk=0,
        work=0,
        link_share=0.0,
        threads=wish.threads or machine.threads,
        prefix_bytes=0,
        boxes=(Box("RAM", limit, ()), ssd_box(census, machine, census.expert_bytes)),
        short=short,
        notes=notes,
    )
