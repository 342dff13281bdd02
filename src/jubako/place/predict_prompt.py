"""Predicted times of prompts on a card, chunk by chunk.

A chunk reads and unpacks every weight that it uses while its products are computed, so it takes the longer of the two,
and what attention takes besides. Experts that have no slot come over the link under the compute of the layer before: of
both the longer one shows. Those that RAM lacks are read from the SSD before that.
"""

from __future__ import annotations

from .census import Census, card_bytes, slot_bytes
from .factors import CALIBRATED, Factors
from .machine import CardRates, Machine
from .predict import Holding, chunks, missed, ssd_terms
from .routing import Counted, Popularity
from .sizes import size_text
from .speed import Estimate, Term


def card_prompt(
    census: Census, machine: Machine, card: CardRates, holding: Holding, popularity: Popularity, tokens: int,
    chunk: int, factors: Factors = CALIBRATED,
) -> Estimate:  # fmt: skip
    """A prompt from an empty context."""
    config = census.config
    once = [matrix for matrix in census.dense if matrix.rows != config.vocabulary]
    macs = sum(matrix.weights for matrix in once)
    macs += config.experts_used * sum(shape.weights for shape in census.trunk_experts)
    rate, dense = card.to_card * factors.link, float(sum(card_bytes(matrix) for matrix in once))
    unpack = compute = attend = link = ssd = 0.0
    streamed = beside = hidden = 0.0  # beside: of weights and products the shorter one
    read = 0
    for size in chunks(tokens, chunk):
        passed, absent, used = dense, 0.0, Counted(popularity, size)
        for index, shape in enumerate(census.trunk_experts):
            passed += used.distinct() * slot_bytes(shape)
            absent += missed(used, min(holding.slots[index], config.experts), factors) * shape.record
        weights = passed / (card.read * factors.card_chunk)
        products = size * macs / (card.matmul * factors.card_macs)
        # the first tokens attend to all before them, which counts among the products
        chosen = factors.card_chosen * min(read / max(2 * config.index_budget, 1), 1)
        looks = size * census.attention_layers * (chosen + factors.card_scored * (read + size / 2))
        unpack, compute, attend, beside = (
            unpack + weights, compute + products, attend + looks, beside + min(weights, products),
        )  # fmt: skip
        link, streamed = link + absent / rate, streamed + absent
        hidden += min(absent / rate, max(weights, products) + looks)
        ssd += sum(term.seconds for term in ssd_terms(census, machine, holding, popularity, size, factors))
        read += size
    shows = unpack + compute + attend - beside
    share = hidden / shows if shows <= link else 0.0  # the longer of compute and link shows
    under = (beside, 0.0) if unpack <= compute else (0.0, beside)
    brought = f"{size_text(streamed)} at {size_text(rate)}/s"
    work = f"{tokens * macs / 1e12:.0f} T multiply-adds"
    terms = [
        Term("reading and unpacking weights", unpack, "once a chunk", under[0] + share * (unpack - under[0])),
        Term("products", compute, work, under[1] + share * (compute - under[1])),
        Term("attention", attend, f"{census.attention_layers} layers", share * attend),
        Term("link", link, brought, 0.0 if share else hidden),
        Term("SSD", ssd, f"{size_text(machine.disk.sequential)}/s in order"),
    ]
    return Estimate(tokens, tuple(term for term in terms if term.seconds > 0))
