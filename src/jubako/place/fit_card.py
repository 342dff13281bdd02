"""The plan with GPUs. On a card, in this order: what every token reads, states, work space, keys and values, slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mode

from .census import Census, ExpertShape, card_bytes, slot_bytes
from .factors import CALIBRATED
from .fit_kv import keep
from .machine import CardRates, Machine
from .plan import Box, Card, Part, Plan, Wish
from .predict import Holding, absent_rates, card_step
from .predict_prompt import card_prompt
from .routing import skewed
from .shares import PAGE, USUAL_CONTEXT, Short, prefix_budget, ram_limit, spread, ssd_box
from .sizes import size_text

RESERVE = 400 << 20  # bytes of a card left to the driver and a desktop
FIXED = 1100 << 20  # of a card for the context of the driver, kernels, captured graphs and what torch can't use
PER_TOKEN = 160 << 10  # of a card for the activations of one prompt token: most while an attention layer begins
HOST = 2500 << 20  # of main memory for the process, beside experts: torch, the driver's context, pinned buffers
CHUNKS = (16384, 8192, 4096, 2048, 1024, 512)
WHOLE_CHUNK = 4096  # the longest where nothing has to be streamed: longer ones gain little then
TRANSIENT = 42  # slots for what steps fetch, beside the pool, and records on their way (ops/gpu/link.py)
RINGS = (256, 64)  # slots that a prompt's absent experts stream through, four turns; the fewer where they don't fit
RAW = 2  # of so many slots there is one for a raw record on its way there, too: see ops/gpu/stream.py
KV_SHARE = 4  # one part in so many of the card's room is for keys and values, unless more is asked for
PROMPT, ANSWER = 8192, 512  # tokens of the request that chunk and slots are chosen for


@dataclass(frozen=True)
class _Card:
    """One card: its limit, its layers and their share of all, bytes of what every token reads of them, of one slot in
    each of them and of the largest slot, and the commonest shape of experts."""

    number: int
    limit: int
    layers: range
    share: float
    dense: int
    slots: int
    largest: int
    usual: ExpertShape | None


@dataclass(frozen=True)
class _Rest:
    """What each card's bytes beside weights, states and keys and values are used for; slots: per card."""

    chunk: int
    work: int
    ring: int
    slots: tuple[int, ...]


def plan_cards(census: Census, machine: Machine, wish: Wish, numbers: Sequence[int]) -> Plan:
    """On the cards of these numbers. Raises Short where they, or RAM beside them, can't hold the least."""
    rates = [machine.cards[number] for number in numbers]
    config, threads = census.config, wish.threads or machine.threads
    cards, ram = _cards(census, wish, rates, numbers), ram_limit(machine, wish)
    each = census.kv_token_bytes(wish.kv_bits, card=True)
    states = census.fixed_bytes(wish.sequences, 0)
    rooms, ring = _rooms(census, cards, states, PAGE * each)
    room = sum(rooms)
    few_experts = sum(2 * config.experts_used * shape.record for shape in census.experts)
    # what all experts in slots would leave for keys and values, which are spread evenly
    beside = min(int((own - config.experts * c.slots) / c.share) for c, own in zip(cards, rooms, strict=True))
    in_slots = beside >= 0 and (wish.slots is None or wish.slots >= config.experts)
    least = HOST if in_slots else HOST + few_experts
    if ram < least:
        needed = size_text(least)
        raise Short(f"{needed} of RAM are needed beside the card and {size_text(ram)} may be used")
    share = beside if beside >= USUAL_CONTEXT * each else room // KV_SHARE
    spare = ram - HOST - census.expert_bytes  # what nobody asks for leaves experts where they are
    if wish.context is not None:
        spare = max(spare, (ram - HOST - few_experts) // KV_SHARE)
    kv = keep(census, wish, share, room, max(spare, 0) if len(cards) == 1 else 0)
    experts = min(census.expert_bytes, ram - HOST - kv.ram)

    popularity = skewed(config.experts, config.experts_used)

    def request(rest: _Rest) -> float:
        """Seconds of a usual request."""
        lying = Holding(_per_layer(cards, rest), spread(census, experts), threads, wish.kv_bits)
        prompt = card_prompt(census, machine, rates[0], lying, popularity, PROMPT, rest.chunk)
        return prompt.seconds + ANSWER * card_step(census, machine, rates[0], lying, popularity).seconds

    rest = min(_rests(census, wish, cards, states + kv.vram, ring), key=request)
    resident = min(rest.slots) == config.experts
    experts = 0 if resident else experts
    prefix = prefix_budget(ram - HOST - kv.ram - experts)
    ram_parts = (
        Part("experts", experts),
        Part("keys and values", kv.ram),
        Part("states", prefix),
        Part("process", HOST),
    )
    cpu, link = absent_rates(census, machine, rates[0], threads)
    held = list(zip(cards, rest.slots, strict=True))
    return Plan(
        device="cuda",
        cards=tuple(Card(card.number, card.layers.start, card.layers.stop, card.limit) for card in cards),
        context=kv.context,
        sequences=wish.sequences,
        kv_bits=wish.kv_bits,
        kv_tokens=kv.tokens,
        kv_tokens_vram=kv.near,
        slots=_per_layer(cards, rest),
        ram_experts=spread(census, experts),
        ram=ram,
        expert_ram=experts,
        ring=rest.ring,
        chunk=rest.chunk,
        work=rest.work,
        link_share=link / (cpu * CALIBRATED.absent + link),
        threads=threads,
        prefix_bytes=prefix,
        boxes=(
            *(_box(census, card, n, rest, len(cards) > 1, kv.vram, states) for card, n in held),
            Box("RAM", ram, ram_parts),
            ssd_box(census, machine, 0 if resident else census.expert_bytes - experts),
        ),
        notes=kv.notes,
    )


def _cards(census: Census, wish: Wish, rates: Sequence[CardRates], numbers: Sequence[int]) -> list[_Card]:
    """The layers of each card, in proportion to its memory."""
    most = [card.total if wish.vram is None else wish.vram for card in rates]
    limits = [max(min(card.free - RESERVE, limit), 0) for card, limit in zip(rates, most, strict=True)]
    layers, weights = len(census.experts), limits if any(limits) else [1] * len(limits)
    ends = [round(layers * sum(weights[: i + 1]) / sum(weights)) for i in range(len(rates))]
    dense = sum(card_bytes(matrix) for matrix in census.stored)
    cards = []
    for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        shapes = census.experts[start:end]
        sizes, share = [slot_bytes(shape) for shape in shapes], (end - start) / layers
        usual = mode(shapes) if shapes else None
        held = int(dense * share)
        cards.append(
            _Card(
                numbers[index], limits[index], range(start, end), share, held, sum(sizes), max(sizes, default=0), usual
            )
        )
    return cards


def _rooms(census: Census, cards: Sequence[_Card], states: int, least_kv: int) -> tuple[list[int], int]:
    """Bytes of each card beside the least that it needs, and the ring. Raises Short where one lacks it."""
    for ring in RINGS:
        least = [c.dense + int(states * c.share) + _work(CHUNKS[-1]) + _ring_bytes(census, c, ring) for c in cards]
        rooms = [card.limit - own for card, own in zip(cards, least, strict=True)]
        if min(rooms) >= least_kv:
            return rooms, ring
    needed, card = next((n, c) for n, c, room in zip(least, cards, rooms, strict=True) if room < least_kv)
    raise Short(f"{size_text(needed + least_kv)} of video memory are needed and {size_text(card.limit)} may be used")


def _work(chunk: int) -> int:
    """Bytes of a card that reading so many prompt tokens at a time takes."""
    return FIXED + PER_TOKEN * chunk


def _ring_bytes(census: Census, card: _Card, ring: int) -> int:
    """What streams and steps need beside the slots."""
    ring, usual = min(census.config.experts, ring), card.usual
    own = 0 if usual is None else ring * slot_bytes(usual) + ring // RAW * usual.record
    return own + TRANSIENT * card.largest


def _rests(census: Census, wish: Wish, cards: Sequence[_Card], shared: int, ring: int) -> list[_Rest]:
    """For each length of a chunk that fits: its work space and ring, and slots of all that is left. shared: bytes of
    states, keys and values, spread evenly over the layers."""
    count, found = census.config.experts, []
    wanted = count if wish.slots is None else min(wish.slots, count)
    rooms = [card.limit - card.dense - int(shared * card.share) for card in cards]
    for chunk in CHUNKS:
        work = _work(chunk)
        fits = all(work + count * c.slots <= room for c, room in zip(cards, rooms, strict=True))
        if wanted == count and fits and chunk <= WHOLE_CHUNK:
            found.append(_Rest(chunk, work, 0, (count,) * len(cards)))
            continue
        left = [room - work - _ring_bytes(census, c, ring) for c, room in zip(cards, rooms, strict=True)]
        if min(left) >= 0 or chunk == CHUNKS[-1]:
            slots = (min(wanted, max(free, 0) // max(c.slots, 1)) for c, free in zip(cards, left, strict=True))
            found.append(_Rest(chunk, work, min(count, ring), tuple(slots)))
    whole = [rest for rest in found if not rest.ring]
    return whole or found


def _per_layer(cards: Sequence[_Card], rest: _Rest) -> tuple[int, ...]:
    return tuple(slots for card, slots in zip(cards, rest.slots, strict=True) for _ in card.layers)


def _box(census: Census, card: _Card, slots: int, rest: _Rest, several: bool, kv: int, states: int) -> Box:
    """What one card holds; what belongs to no layer is counted evenly."""
    parts = (
        Part("dense weights", card.dense),
        Part("experts", slots * card.slots),
        Part("keys and values", int(kv * card.share)),
        Part("states", int(states * card.share)),
        Part("prompt ring", _ring_bytes(census, card, rest.ring) if rest.ring else 0),
        Part("work space", rest.work),
    )
    return Box(f"VRAM {card.number}" if several else "VRAM", card.limit, parts)
