"""The plan with GPUs. On a card, in this order: what every token reads, states, work space, keys and values, slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .census import Census, card_bytes, slot_bytes
from .machine import CardRates, Machine
from .plan import Box, Card, Part, Plan, Wish
from .predict import Holding, absent_rates, card_prompt, card_step
from .routing import skewed
from .shares import PAGE, Short, context_of, prefix_budget, ram_limit, spread, ssd_box
from .sizes import size_text

RESERVE = 400 << 20  # bytes of a card left to the driver and a desktop
FIXED = 700 << 20  # of a card for the context of the driver, kernels and captured graphs
PER_TOKEN = 260 << 10  # of a card for the activations of one prompt token
HOST = 2500 << 20  # of main memory for the process, beside experts: torch, the driver's context, pinned buffers
CHUNKS = (16384, 8192, 4096, 2048, 1024, 512)
TRANSIENT = 16  # slots for what one step needs, beside the pool
RING = 128  # expert places that a prompt streams through, at most
KV_SHARE = 4  # one part in so many of the card's room is for keys and values, unless more is asked for
FEWEST_KV = 16384  # newest tokens that stay on the card where the rest lies in RAM
PROMPT, ANSWER = 8192, 512  # tokens of the request that chunk and slots are chosen for


@dataclass(frozen=True)
class _Card:
    """One card's limit, its layers, and the bytes of what every token reads of them."""

    index: int
    limit: int
    layers: range
    dense: int


@dataclass(frozen=True)
class _Rest:
    """What the bytes beside weights, states and keys and values are used for, all cards together."""

    chunk: int
    work: int
    ring: int
    slots: int


def plan_cards(census: Census, machine: Machine, wish: Wish, rates: Sequence[CardRates]) -> Plan:
    """Raises Short where the cards, or RAM beside them, can't hold the least."""
    cards, config = _cards(census, wish, rates), census.config
    vram, ram = sum(card.limit for card in cards), ram_limit(machine, wish)
    slot_sizes = [slot_bytes(shape) for shape in census.experts]
    each = census.kv_token_bytes(wish.kv_bits, card=True)
    states = census.fixed_bytes(wish.sequences, 0)
    base = sum(card.dense for card in cards) + states
    least = base + len(cards) * _work(CHUNKS[-1]) + (config.experts_used + TRANSIENT) * max(slot_sizes)
    room = vram - least
    if room < PAGE * each:
        raise Short(
            f"{size_text(least + PAGE * each)} of video memory are needed and {size_text(max(vram, 0))} may be used"
        )
    few_experts = sum(2 * config.experts_used * shape.record for shape in census.experts)
    if ram < HOST + few_experts and room < config.experts * sum(slot_sizes):
        raise Short(
            f"{size_text(HOST + few_experts)} of RAM are needed beside the card and {size_text(ram)} may be used"
        )
    beside = room - config.experts * sum(slot_sizes)  # what all experts in slots would leave
    share = max(room // KV_SHARE, beside)
    most = share if wish.context is None else room // 2 + max(ram - HOST - few_experts, 0) // 4
    context, notes = context_of(census, wish, most // each, "memory")
    kv_tokens = max(context, min(wish.sequences * context, share // each))
    kv_vram = kv_tokens if kv_tokens * each <= share else min(context, max(FEWEST_KV, share // each), room // each)
    kv_ram = (kv_tokens - kv_vram) * each
    threads = wish.threads or machine.threads
    experts = min(census.expert_bytes, ram - HOST - kv_ram)
    rests = _rests(census, wish, vram - base - kv_vram * each, slot_sizes, len(cards))

    def request(rest: _Rest) -> float:
        """Seconds of a usual request."""
        held = Holding((rest.slots,) * len(slot_sizes), spread(census, experts), threads, wish.kv_bits)
        popularity = skewed(config.experts, config.experts_used)
        prompt = card_prompt(census, machine, rates[0], held, popularity, PROMPT, rest.chunk)
        return prompt.seconds + ANSWER * card_step(census, machine, rates[0], held, popularity).seconds

    rest = min(rests, key=request)
    resident = rest.slots == config.experts
    experts = 0 if resident else experts
    prefix = prefix_budget(ram - HOST - kv_ram - experts)
    ram_parts = (
        Part("experts", experts),
        Part("keys and values", kv_ram),
        Part("states", prefix),
        Part("process", HOST),
    )
    cpu, link = absent_rates(census, machine, rates[0], threads)
    return Plan(
        device="cuda",
        cards=tuple(Card(card.index, card.layers.start, card.layers.stop, card.limit) for card in cards),
        context=context,
        sequences=wish.sequences,
        kv_bits=wish.kv_bits,
        kv_tokens=kv_tokens,
        kv_tokens_vram=kv_vram,
        slots=(rest.slots,) * len(slot_sizes),
        ram_experts=spread(census, experts),
        ram=ram,
        expert_ram=experts,
        ring=rest.ring,
        chunk=rest.chunk,
        work=rest.work,
        link_share=link / (cpu + link),
        threads=threads,
        prefix_bytes=prefix,
        boxes=(
            *(_box(card, len(cards), rest, slot_sizes, kv_vram * each, states) for card in cards),
            Box("RAM", ram, ram_parts),
            ssd_box(census, machine, 0 if resident else census.expert_bytes - experts),
        ),
        notes=notes,
    )


def _cards(census: Census, wish: Wish, rates: Sequence[CardRates]) -> list[_Card]:
    """The layers of each card, in proportion to its memory."""
    limits = [max(min(card.free - RESERVE, wish.vram or card.total), 0) for card in rates]
    layers, total = len(census.experts), max(sum(limits), 1)
    ends = [round(layers * sum(limits[: i + 1]) / total) for i in range(len(rates))]
    dense = sum(card_bytes(matrix) for matrix in census.stored)
    return [
        _Card(index, limits[index], range(start, end), dense * (end - start) // layers)
        for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


def _work(chunk: int) -> int:
    """Bytes of a card that reading so many prompt tokens at a time takes."""
    return FIXED + PER_TOKEN * chunk


def _rests(census: Census, wish: Wish, room: int, slot_sizes: Sequence[int], cards: int) -> list[_Rest]:
    """For each length of a chunk that fits: its work space and ring, and slots of all that is left."""
    count, found = census.config.experts, []
    wanted = count if wish.slots is None else min(wish.slots, count)
    for chunk in CHUNKS:
        work = cards * _work(chunk)
        if wanted == count and work + count * sum(slot_sizes) <= room:
            found.append(_Rest(chunk, work, 0, count))
            continue
        ring = min(count, RING, max(room // 4 // max(slot_sizes), census.config.experts_used))
        left = room - work - (ring + TRANSIENT) * max(slot_sizes)
        if left >= 0 or chunk == CHUNKS[-1]:
            found.append(_Rest(chunk, work, ring, min(wanted, max(left, 0) // sum(slot_sizes))))
    return found


def _box(card: _Card, cards: int, rest: _Rest, slot_sizes: Sequence[int], kv: int, states: int) -> Box:
    """What one card holds; what belongs to no layer is counted evenly."""
    share = len(card.layers) / len(slot_sizes)
    ring = (rest.ring + TRANSIENT) * max(slot_sizes) // cards if rest.ring else 0
    parts = (
        Part("dense weights", card.dense),
        Part("experts", rest.slots * sum(slot_sizes[layer] for layer in card.layers)),
        Part("keys and values", int(kv * share)),
        Part("states", int(states * share)),
        Part("prompt ring", ring),
        Part("work space", rest.work // cards),
    )
    return Box(f"VRAM {card.index}" if cards > 1 else "VRAM", card.limit, parts)
