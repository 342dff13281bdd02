"""Predicted times, one function per kind of step: bytes over measured rates, in the order they pass.

A step on the CPU reads its weights one after the other: Σ bytes(type) / rate(type) + state and cache / RAM rate.

A step on a card: dense / VRAM + experts in slots / VRAM, layer by layer, and what `absent` says of waiting for the
experts that have no slot; experts that RAM lacks add their bytes / SSD rate. Prompts on a card: `predict_prompt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .absent import Outside
from .census import Census, ExpertShape, card_bytes, sizes, slot_bytes
from .factors import CALIBRATED, Factors
from .machine import CardRates, Kernel, Machine
from .routing import Counted, Popularity, distinct
from .sizes import size_text
from .speed import Estimate, Term


@dataclass(frozen=True)
class Holding:
    """Where experts lie: per layer the numbers that video memory and RAM hold, and the machine they lie in.

    near: tokens whose keys and values lie in video memory, None for all.
    """

    slots: Sequence[int]
    ram: Sequence[int]
    threads: int
    kv_bits: int = 8
    near: int | None = None


def _over(bytes: Mapping[str, float], rates: Mapping[str, float]) -> float:
    return sum(size / rates[kind] for kind, size in bytes.items())


def _threaded(machine: Machine, kernel: Kernel, threads: int) -> float:
    """Bytes/s of experts on so many threads; between measured numbers of threads as the reference type does."""
    full = kernel.experts[max(kernel.experts)]
    if threads in kernel.experts:
        return kernel.experts[threads]
    shape = max(machine.kernels.values(), key=lambda k: len(k.experts)).experts
    known = sorted(shape)
    above = next((t for t in known if t >= threads), known[-1])
    below = max((t for t in known if t <= threads), default=known[0])
    share = (threads - below) / (above - below) if above > below else 1.0
    return full * (shape[below] + share * (shape[above] - shape[below])) / shape[known[-1]]


def cpu_rates(
    census: Census, machine: Machine, threads: int, factors: Factors
) -> tuple[dict[str, float], dict[str, float]]:
    """(dense, experts): bytes/s by block type, what the network's own matrices reach of the probe's."""
    kernels = {kind: machine.kernel(kind) for kind in census.kinds}
    scale = {kind: _threaded(machine, k, threads) / k.experts[max(k.experts)] for kind, k in kernels.items()}
    dense = {kind: k.linear * scale[kind] * factors.cpu_kernels for kind, k in kernels.items()}
    experts = {kind: _threaded(machine, k, threads) * factors.cpu_kernels for kind, k in kernels.items()}
    return dense, experts


def cpu_step(
    census: Census, machine: Machine, holding: Holding, popularity: Popularity, depth: int = 0, columns: int = 1,
    factors: Factors = CALIBRATED,
) -> Estimate:  # fmt: skip
    """A step of the trunk on the CPU, `columns` tokens of one sequence after `depth`."""
    config = census.config
    dense_rates, expert_rates = cpu_rates(census, machine, holding.threads, factors)
    memory = machine.ram_read[max(machine.ram_read)]
    dense = _over(sizes(census.dense), dense_rates)
    read = distinct(popularity, columns)
    experts = sum(_over(shape.by_kind, expert_rates) for shape in census.trunk_experts) * read
    state = (census.state_bytes + census.cache_bytes(depth, holding.kv_bits, False, columns)) / memory
    dense_bytes = sum(sizes(census.dense).values())
    expert_bytes = read * sum(shape.record for shape in census.trunk_experts)
    terms = [
        Term("dense weights", dense, f"{size_text(dense_bytes)} at {size_text(dense_bytes / dense)}/s"),
        Term("experts", experts, f"{size_text(expert_bytes)} at {size_text(expert_bytes / experts)}/s"),
        Term("state and cache", state, f"{size_text(state * memory)} at {size_text(memory)}/s"),
        Term("calls", config.layers * factors.cpu_layer, f"{config.layers} layers"),
        *ssd_terms(census, machine, holding, popularity, columns, factors),
    ]
    return Estimate(columns, tuple(term for term in terms if term.seconds > 0))


def cpu_prompt(
    census: Census, machine: Machine, holding: Holding, popularity: Popularity, tokens: int, chunk: int = 512,
    factors: Factors = CALIBRATED,
) -> Estimate:  # fmt: skip
    """A prompt on the CPU, in chunks: dense products by their multiply-adds; an expert's weights are unpacked once for
    all of a chunk's tokens that use it."""
    config = census.config
    kernels = {kind: machine.kernel(kind) for kind in census.kinds}
    _, rates = cpu_rates(census, machine, holding.threads, factors)
    scale = {kind: _threaded(machine, k, holding.threads) / k.experts[max(k.experts)] for kind, k in kernels.items()}
    once = [m for m in census.dense if m.rows != config.vocabulary]  # the head sees the last token only
    macs = {kind: sum(m.weights for m in once if m.kind == kind) for kind in kernels}
    dense = expert = streamed = 0.0
    for size in chunks(tokens, chunk):
        dense += sum(size * n / (kernels[k].linear_macs * scale[k] * factors.cpu_prompt) for k, n in macs.items())
        read = distinct(popularity, size)
        for shape in census.trunk_experts:
            for matrix in (shape.gate, shape.up, shape.down):
                kernel = kernels[matrix.kind]
                work = kernel.experts_macs * scale[matrix.kind] * factors.cpu_prompt
                unpack = max(matrix.bytes / rates[matrix.kind] - matrix.weights / work, 0)
                expert += read * unpack + size * config.experts_used * matrix.weights / work
        streamed += sum(term.seconds for term in ssd_terms(census, machine, holding, popularity, size, factors))
    all_macs, each = tokens * sum(macs.values()), factors.cpu_layer_token / holding.threads
    terms = [
        Term("dense products", dense, f"{all_macs / 1e12:.2f} T multiply-adds at {all_macs / dense / 1e9:.0f} G/s"),
        Term("experts", expert, f"{config.experts_used} of {config.experts} a token"),
        Term("attention, state", tokens * config.layers * each, f"{config.layers} layers"),
        Term("SSD", streamed, f"{size_text(machine.disk.sequential)}/s in order"),
    ]
    return Estimate(tokens, tuple(term for term in terms if term.seconds > 0))


def card_step(
    census: Census, machine: Machine, card: CardRates, holding: Holding, popularity: Popularity, depth: int = 0,
    columns: int = 1, factors: Factors = CALIBRATED,
) -> Estimate:  # fmt: skip
    """A step of the trunk on a card, its absent experts shared between CPU and link."""
    config = census.config
    dense_bytes = sum(card_bytes(matrix) for matrix in census.dense)
    cache = census.cache_bytes(depth, holding.kv_bits, True, columns)
    away_share = max(1 - holding.near / depth, 0) if depth and holding.near is not None else 0.0
    far = columns * census.chosen_bytes(depth, holding.kv_bits, True) * away_share
    cache -= int(far)
    cells = card.mapped * factors.far_cells
    dense = dense_bytes / (card.read * factors.card_dense)
    state = census.state_bytes / (card.read * factors.card_dense) + cache / (card.read * factors.card_cache)
    state += census.attention_layers * factors.card_attending * min(depth / max(config.index_budget, 1), 1)
    launches = config.layers * factors.card_launches * card.node
    more = (columns - 1) * config.layers * factors.card_column
    cpu, link = absent_rates(census, machine, card, holding.threads)
    link *= factors.link_from_frames if min(holding.ram[: config.layers]) < config.experts else 1.0
    boxed = sum(held < config.experts for held in holding.slots[: config.layers])
    asking = boxed * factors.asking
    each = (dense + state + launches + more + asking) / config.layers
    slot = waiting = busy = slot_total = absent_bytes = asked = absent_count = 0.0
    used = Counted(popularity, columns)
    seen: dict[tuple[ExpertShape, int], tuple[float, float, float]] = {}
    for index, shape in enumerate(census.trunk_experts):
        held = min(holding.slots[index], config.experts)
        away = missed(used, held, factors)
        here = used.distinct() - away
        if (shape, held) not in seen:
            in_slots = here * slot_bytes(shape) / (card.read * factors.card_experts)
            outside = outside_of(shape, each, in_slots, cpu, link, factors)
            seen[shape, held] = in_slots, *outside.waiting(used.distinct(), away)
        in_slots, shown, work = seen[shape, held]
        slot, waiting, busy = slot + in_slots, waiting + shown, busy + work
        slot_total, absent_bytes = slot_total + here * slot_bytes(shape), absent_bytes + away * shape.record
        asked, absent_count = asked + here + away, absent_count + away
    rates = f"CPU {size_text(cpu * factors.absent)}/s and link {size_text(link * factors.fetch)}/s together"
    terms = [
        Term("dense weights", dense, f"{size_text(dense_bytes)} at {size_text(dense_bytes / dense)}/s"),
        Term("experts in slots", slot, f"{size_text(slot_total)}"),
        Term("absent experts", busy, f"{size_text(absent_bytes)}: {rates}", busy - waiting),
        Term("asking for them", asking, f"{boxed} layers"),
        Term("state and cache", state, f"{size_text(census.state_bytes + cache)}"),
        Term("keys and values in RAM", far / cells, f"{size_text(far)} at {size_text(cells)}/s"),
        Term("launches", launches, f"{config.layers * factors.card_launches:.0f} of {card.node * 1e6:.1f} µs"),
        Term("further columns", more, f"{columns - 1} columns"),
        Term("host", factors.host, "asking for a step, reading its result"),
        *ssd_terms(census, machine, holding, popularity, columns, factors),
    ]
    hits = 1 - absent_count / asked if asked else 1.0
    return Estimate(columns, tuple(term for term in terms if term.seconds > 0), hits)


def outside_of(shape: ExpertShape, base: float, slots: float, cpu: float, link: float, factors: Factors) -> Outside:
    """A layer with such experts, CPU and link at these rates; a link that can't bring any takes for ever."""
    fetch = shape.record / (link * factors.fetch) if link else 1e9
    return Outside(base, slots, fetch, shape.record / (cpu * factors.absent), factors)


def draft_pass(
    census: Census, machine: Machine, card: CardRates, holding: Holding, popularity: Popularity,
    factors: Factors = CALIBRATED,
) -> float:  # fmt: skip
    """Seconds of one pass of the draft layer on a card."""
    if not census.draft:
        return 0.0
    shape, used = census.experts[-1], Counted(popularity, 1)
    away = missed(used, min(holding.slots[-1], census.config.experts), factors)
    dense = sum(card_bytes(matrix) for matrix in census.draft) / (card.read * factors.card_dense)
    base = dense + (factors.card_launches + 6) * card.node
    slots = (used.distinct() - away) * slot_bytes(shape) / (card.read * factors.card_experts)
    late = replace(factors, ahead=0.0)  # nothing names its experts before it asks
    cpu, link = absent_rates(census, machine, card, holding.threads)
    waiting, _ = outside_of(shape, base, slots, cpu, link, late).waiting(used.distinct(), away)
    return base + slots + waiting + (factors.asking if away > 0 else 0.0)


def missed(used: Counted, held: int, factors: Factors) -> float:
    """Of the experts that a step uses in a layer, those beyond `held`, which are not quite the most popular ones."""
    best, any = used.missed(held), used.distinct() * (1 - held / used.experts)
    return best + factors.blind * (any - best)


def absent_rates(census: Census, machine: Machine, card: CardRates, threads: int) -> tuple[float, float]:
    """(CPU, link) bytes/s on absent experts while both work. Measured together for one block type; others keep the
    ratio to their own rate alone."""
    bytes: dict[str, float] = {}
    for shape in census.trunk_experts:
        for kind, size in shape.by_kind.items():
            bytes[kind] = bytes.get(kind, 0.0) + size
    alone = sum(bytes.values()) / _over(bytes, {k: _threaded(machine, machine.kernel(k), threads) for k in bytes})
    both = machine.together
    if both is None or both.link <= 0:
        return alone, 0.0
    reference = machine.kernel(both.kind)
    slowed = min(both.experts / reference.experts[max(reference.experts)], 1.0)
    return alone * slowed, min(both.link, card.mapped)


def chunks(tokens: int, size: int) -> list[int]:
    """The pieces a prompt is read in."""
    return [size] * (tokens // size) + ([tokens % size] if tokens % size else [])


def ssd_terms(
    census: Census, machine: Machine, holding: Holding, popularity: Popularity, columns: int, factors: Factors
) -> list[Term]:
    """Experts that neither box holds. Video memory and RAM hold different ones where RAM is short."""
    count, used = census.config.experts, Counted(popularity, columns)
    size = 0.0
    for index, shape in enumerate(census.trunk_experts):
        in_ram, in_slots = holding.ram[index], holding.slots[index]
        if max(in_ram, in_slots) < count:
            size += missed(used, min(in_ram + in_slots, count), factors) * shape.record
    if not size:
        return []
    rate = machine.disk.sequential * factors.ssd
    return [Term("SSD", size / rate, f"{size_text(size)} at {size_text(rate)}/s")]
