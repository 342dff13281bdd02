"""The plan without a GPU: what every token reads stays in RAM, experts as far as they fit, the rest on the SSD."""

from __future__ import annotations

from .budget import CHUNKS, work_token_bytes
from .census import Census
from .machine import Machine
from .plan import Box, Part, Plan, Wish
from .shares import PAGE, USUAL_CONTEXT, Short, context_of, prefix_budget, ram_limit, spread, ssd_box
from .sizes import size_text

PROCESS = 160 << 20  # bytes of the process itself
CHUNK = 512  # prompt tokens a pass where all experts are in RAM
WORK_SHARE = 8  # one part in so many of the rest for activations, where longer chunks spare reads of the SSD
OPEN_COLUMNS = 16  # that a GDN state keeps apart until a step is decided


def plan_cpu(census: Census, machine: Machine, wish: Wish) -> Plan:
    """Raises Short where even two tokens' experts do not fit beside the rest."""
    config, limit = census.config, ram_limit(machine, wish)
    each = census.kv_token_bytes(wish.kv_bits, card=False)
    columns = OPEN_COLUMNS * 4 * config.gdn_channels * sum(config.recurrent)
    states = wish.sequences * (census.state_bytes // 2 + columns)
    dense = census.stored_bytes - (0 if census.tied else census.embed.bytes)
    least = sum(2 * config.experts_used * shape.record for shape in census.experts)
    rest = limit - PROCESS - dense - states
    chunk = _chunk(census, rest)
    work = chunk * work_token_bytes(config)
    room = rest - work - least
    if room < PAGE * each:
        raise Short(
            f"{size_text(limit - room + PAGE * each)} of RAM are needed (what every token reads {size_text(dense)}, "
            f"a few experts {size_text(least)}, state and the process {size_text(states + PROCESS + work)}) and "
            f"{size_text(limit)} may be used"
        )
    beside = room + least - census.expert_bytes  # what all experts would leave
    if wish.context is not None:
        most = max(room // 2, beside)
    else:  # all experts in RAM are worth more than a context beyond what most work needs
        most = beside if beside >= USUAL_CONTEXT * each else min(room // 4, USUAL_CONTEXT * each)
    context, notes = context_of(census, wish, most // each, "RAM")
    kv_tokens = max(context, min(wish.sequences * context, beside // 2 // each))
    left = rest - work - kv_tokens * each
    experts = min(census.expert_bytes, left)
    prefix = prefix_budget(left - experts)
    parts = (
        Part("dense weights", dense),
        Part("experts", experts),
        Part("keys and values", kv_tokens * each),
        Part("states", states + prefix),
        Part("process", PROCESS + work),
    )
    return Plan(
        device="cpu",
        cards=(),
        context=context,
        sequences=wish.sequences,
        kv_bits=wish.kv_bits,
        kv_tokens=kv_tokens,
        kv_tokens_vram=0,
        slots=(0,) * len(census.experts),
        ram_experts=spread(census, experts),
        ram=limit,
        expert_ram=experts,
        ring=0,
        chunk=chunk,
        work=0,
        link_share=0.0,
        threads=wish.threads or machine.threads,
        prefix_bytes=prefix,
        boxes=(Box("RAM", limit, parts), ssd_box(census, machine, census.expert_bytes - experts)),
        notes=notes,
    )


def _chunk(census: Census, rest: int) -> int:
    """Prompt tokens a pass. Where not all experts are in RAM each pass may read them, so longer ones are better as far
    as their activations take a small part of the rest."""
    each = work_token_bytes(census.config)
    if rest >= census.expert_bytes + CHUNK * each:
        return CHUNK
    return next((tokens for tokens in CHUNKS if tokens * each <= rest // WORK_SHARE), CHUNKS[-1])
