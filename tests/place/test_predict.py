"""The formulas, against sums done by hand and against what other engines were measured to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from place.planned import CARD, census, machine, measured

from jubako.measure.geometry import network_config
from jubako.measure.hollow import hollow_network
from jubako.measure.synth import SKEW
from jubako.measure.tensor_plan import BlockTypes, plan_tensors
from jubako.place import routing
from jubako.place.absent import Outside
from jubako.place.census import card_bytes, sizes, slot_bytes, take_census
from jubako.place.factors import APART, CALIBRATED, IDEAL
from jubako.place.predict import Holding, absent_rates, card_step, chunks, cpu_prompt, cpu_step
from jubako.place.predict_prompt import card_prompt
from jubako.place.routing import Counted, distinct, flat, hit_rate, skewed

EVEN = flat(512, 10)
LAYERS = 48


def holding(slots: int, ram: int = 512, threads: int = 8) -> Holding:
    return Holding((slots,) * LAYERS, (ram,) * LAYERS, threads)


def test_a_step_on_the_cpu_is_its_bytes_over_the_rates() -> None:
    counted = census(draft=False)
    dense = sum(sizes(counted.dense).values())
    experts = 10 * sum(shape.record for shape in counted.experts)
    step = cpu_step(counted, machine(), holding(0), EVEN, factors=IDEAL)
    assert step.seconds == pytest.approx((dense + experts) / 50e9 + counted.state_bytes / 100e9)
    assert step.limit.name == "dense weights"
    calibrated = cpu_step(counted, machine(), holding(0), EVEN)
    expected = (dense + experts) / (50e9 * CALIBRATED.cpu_kernels) + counted.state_bytes / 100e9 + 48 * 110e-6
    assert calibrated.seconds == pytest.approx(expected)


def test_fewer_threads_follow_the_type_that_was_measured_on_them() -> None:
    counted = census(draft=False)
    one, all_ = (cpu_step(counted, machine(), holding(0, threads=n), EVEN, factors=IDEAL) for n in (1, 8))
    assert one.terms[1].seconds == pytest.approx(5 * all_.terms[1].seconds)


def test_columns_of_a_step_share_experts() -> None:
    assert distinct(EVEN, 4) == pytest.approx(512 * (1 - (502 / 512) ** 4))
    counted = census(draft=False)
    one, four = (cpu_step(counted, machine(), holding(0), EVEN, columns=n, factors=IDEAL) for n in (1, 4))
    assert four.terms[1].seconds / one.terms[1].seconds == pytest.approx(distinct(EVEN, 4) / 10)
    assert four.terms[0].seconds == one.terms[0].seconds


def test_a_step_on_a_card_that_holds_everything() -> None:
    counted = census(draft=False)
    read = sum(card_bytes(m) for m in counted.dense) + 10 * sum(slot_bytes(s) for s in counted.experts)
    step = card_step(counted, machine(1), CARD, holding(512), EVEN, factors=IDEAL)
    assert step.seconds == pytest.approx((read + counted.state_bytes) / 1e12)
    assert step.hit_rate == 1.0


def test_the_limit_is_what_parts_take_apart() -> None:
    """With everything in slots nothing meets: the limit is the step itself. Else it is the dense part as it runs, and
    what is absent by CPU and link at once, as far as the link has not brought it under that."""
    counted = census(draft=False)
    whole, limit = (
        card_step(counted, machine(1), CARD, holding(512), EVEN, 4096, factors=factors)
        for factors in (CALIBRATED, APART)
    )
    assert limit.seconds == whole.seconds
    none = card_step(counted, machine(1), CARD, holding(0), EVEN, 4096, factors=APART)
    absent = 10 * sum(shape.record for shape in counted.experts)
    in_slots = 10 * sum(slot_bytes(shape) for shape in counted.experts) / (1e12 * APART.card_experts)
    dense, link = limit.seconds - in_slots, 30e9 * APART.fetch
    early = link * (dense - APART.host)  # the host asks when no layer is at work
    assert none.seconds == pytest.approx(dense + (absent - early) / (40e9 + link), rel=1e-6)


def test_absent_experts_take_both_ways_at_once() -> None:
    counted = census(draft=False)
    absent = 10 * sum(shape.record for shape in counted.experts)
    dense = sum(card_bytes(m) for m in counted.dense) / 1e12 + counted.state_bytes / 1e12
    step = card_step(counted, machine(1), CARD, holding(0), EVEN, factors=IDEAL)
    early = 30e9 * dense  # of them, what the link brings under the dense work of the layers before
    assert step.seconds == pytest.approx(dense + (absent - early) / (40e9 + 30e9))
    assert step.hit_rate == 0.0 and step.limit.name == "absent experts"
    late = card_step(counted, machine(1), CARD, holding(0), EVEN, factors=replace(IDEAL, ahead=0))
    assert late.seconds == pytest.approx(dense + absent / (40e9 + 30e9))
    half = card_step(counted, machine(1), CARD, holding(256), EVEN, factors=IDEAL)
    assert half.seconds == pytest.approx(dense + (absent / 2 - early) / 70e9, rel=0.02)  # slots pass meanwhile
    assert half.hit_rate == pytest.approx(0.5)


def layer(**factors: float) -> Outside:
    """10 µs of dense work and 1 of experts in slots; an expert takes 40 µs over the link and 30 by the CPU."""
    return Outside(10e-6, 1e-6, 40e-6, 30e-6, replace(IDEAL, **factors))


def test_a_layer_lasts_as_long_as_the_busiest_of_three() -> None:
    """All of two experts absent: the CPU's part is the same whether the link brought the other early or late."""
    shown, busy = layer(ahead=1).waiting(2, 2)
    assert shown == pytest.approx(29e-6) and busy == pytest.approx(40e-6)  # the link brings one of them in 40 µs
    shown, _ = layer(ahead=1, handoff=25e-6).waiting(2, 2)  # it would end 25 µs after the first came
    assert 10e-6 + 1e-6 + shown == pytest.approx((1 + 25 / 70) * 40e-6)
    alone, _ = replace(layer(), fetch=1e9).waiting(2, 2)
    assert alone == pytest.approx(59e-6)  # both by the CPU, beside one microsecond of slots
    assert layer().waiting(2, 0) == (0.0, 0.0)


def test_wrong_guesses_take_the_link_and_bring_nothing() -> None:
    """One absent expert, named wrongly half the time: the link's 40 µs are spent, and half a hand-off and half an
    expert remain, of which the link takes what makes both end together."""
    right, _ = layer(ahead=1, handoff=40e-6).waiting(1, 1)
    assert 11e-6 + right == pytest.approx(40e-6)
    wrong, _ = layer(ahead=1, handoff=40e-6, wrong=1.0).waiting(1, 1)
    assert 11e-6 + wrong == pytest.approx((1 + (10 + 40 + 15 - 40) / 70) * 40e-6)


def test_layers_that_now_and_then_lack_an_expert_cost_more_than_their_mean() -> None:
    few, rates = layer(handoff=40e-6, ahead=0), []
    for away in (0.25, 0.5, 1.0, 2.0):
        shown, _ = few.waiting(10, away)
        rates.append(shown / away)
    assert rates == sorted(rates, reverse=True)  # several at a time share a hand-off, and the link helps


def test_chosen_cells_that_lie_in_main_memory_come_over_the_link() -> None:
    """12 layers of 2,051 cells of 1,152 bytes, as many of them from there as its share of the context."""
    counted = census(draft=False)
    near, far = (
        card_step(counted, machine(1), CARD, replace(holding(512), near=tokens), EVEN, 100_000, factors=IDEAL)
        for tokens in (None, 25_000)
    )
    away = 12 * 2051 * 1152 * 0.75
    assert far.seconds - near.seconds == pytest.approx(away / 40e9 - away / 1e12)
    short = card_step(counted, machine(1), CARD, replace(holding(512), near=25_000), EVEN, 20_000, factors=IDEAL)
    assert not any(term.name == "keys and values in RAM" for term in short.terms)


def test_rates_together_scale_with_the_block_type() -> None:
    counted, box = census(draft=False), machine(1)
    assert absent_rates(counted, box, CARD, 8) == pytest.approx((40e9, 30e9))
    slow = dict.fromkeys(box.kernels, replace(box.kernels["Q8_0"], experts={1: 5e9, 8: 25e9}))
    slow["IQ3_XXS"] = box.kernels["IQ3_XXS"]  # the type measured together
    only = replace(counted, experts=(replace(counted.experts[0], gate=counted.experts[0].down),))
    rate = absent_rates(replace(only, experts=census("UD-Q4_K_XL").experts), replace(box, kernels=slow), CARD, 8)
    assert rate == pytest.approx((20e9, 30e9))


def test_what_neither_box_holds_comes_from_the_ssd() -> None:
    counted = census(draft=False)
    step = cpu_step(counted, machine(), holding(0, ram=256), EVEN, factors=IDEAL)
    half = 5 * sum(shape.record for shape in counted.experts)
    assert next(term.seconds for term in step.terms if term.name == "SSD") == pytest.approx(half / 2e9)
    both = card_step(counted, machine(1), CARD, holding(256, ram=256), EVEN, factors=IDEAL)
    assert all(term.name != "SSD" for term in both.terms)  # they hold different ones


def test_a_prompt_on_the_cpu_multiplies_and_unpacks() -> None:
    counted = census(draft=False)
    once = sum(m.weights for m in counted.dense if m.rows != 248_320)
    used = 10 * sum(shape.weights for shape in counted.experts)
    prompt = cpu_prompt(counted, machine(), holding(0), EVEN, 512, factors=IDEAL)
    unpack = distinct(EVEN, 512) * sum(
        max(m.bytes / 50e9 - m.weights / 500e9, 0) for s in counted.experts for m in (s.gate, s.up, s.down)
    )
    assert prompt.seconds == pytest.approx(512 * (once + used) / 500e9 + unpack)


def test_a_prompt_on_a_card_takes_the_longer_of_link_and_compute() -> None:
    counted = census(draft=False)
    once = [m for m in counted.dense if m.rows != 248_320]
    streamed = 512 * sum(shape.record for shape in counted.experts)
    macs = sum(m.weights for m in once) + 10 * sum(shape.weights for shape in counted.experts)
    short = card_prompt(counted, machine(1), CARD, holding(0), EVEN, 4096, 4096, IDEAL)
    assert short.seconds == pytest.approx(streamed / 50e9, rel=1e-6)
    assert short.limit.name == "link"
    long = card_prompt(counted, machine(1), CARD, holding(0), EVEN, 65_536, 65_536, IDEAL)
    assert long.seconds == pytest.approx(65_536 * macs / 100e12, rel=1e-6)  # weights are read beside the products
    assert long.limit.name == "products"
    held = card_prompt(counted, machine(1), CARD, holding(512), EVEN, 512, 512, replace(IDEAL, card_chunk=0.1))
    passed = sum(card_bytes(m) for m in once) + distinct(EVEN, 512) * sum(slot_bytes(s) for s in counted.experts)
    assert held.seconds == pytest.approx(passed / 1e11)
    assert held.limit.name == "reading and unpacking weights"
    far = replace(IDEAL, card_chosen=1e-6, card_scored=1e-11)
    looked = card_prompt(counted, machine(1), CARD, holding(512), EVEN, 65_536, 8192, far)
    plain = card_prompt(counted, machine(1), CARD, holding(512), EVEN, 65_536, 8192, IDEAL)
    assert looked.seconds - plain.seconds == pytest.approx(12 * (57_344 * 1e-6 + 65_536 * 1e-11 * 32_768))
    assert chunks(1030, 512) == [512, 512, 6]


def test_skewed_routing_is_that_of_synth() -> None:
    assert routing.SKEW == SKEW
    uneven = skewed(512, 10)
    assert uneven.sum() == pytest.approx(10) and list(uneven) == sorted(uneven, reverse=True)
    assert hit_rate(uneven, 128) > 2.5 * hit_rate(EVEN, 128) == pytest.approx(2.5 * 0.25)
    assert Counted(uneven, 1).missed(128) == pytest.approx(10 * (1 - hit_rate(uneven, 128)))


@pytest.mark.parametrize(
    ("slots", "experts", "uneven", "depth", "milliseconds"),
    [
        (1370, 512, False, 430, 11.53), (5840, 512, False, 160, 9.92), (14750, 512, False, 290, 6.68),
        (1370, 512, True, 2460, 9.02), (5840, 512, True, 310, 6.14), (14750, 512, True, 1000, 4.37),
        (2592, 256, False, 160, 10.10), (2592, 256, True, 310, 8.00),
    ],
)  # fmt: skip
def test_steps_over_boxes_take_what_was_measured(
    slots: int, experts: int, uneven: bool, depth: int, milliseconds: float
) -> None:
    """On one H200 with 15 threads (docs/performance/boxes.md), the second kind with gate and up in IQ2_S."""
    types = BlockTypes.parse("" if experts == 512 else "gate_up=IQ2_S,down=IQ4_NL")
    config = network_config(context=4096, ngram_rows=100_000, experts=experts)
    counted, box = take_census(hollow_network(config, plan_tensors(config, types))), measured()
    held = tuple(slots // LAYERS + (layer < slots % LAYERS) for layer in range(LAYERS))
    popularity = (skewed if uneven else flat)(experts, 10)
    step = card_step(counted, box, box.cards[0], Holding(held, (experts,) * LAYERS, 16), popularity, depth)
    assert 1000 * step.seconds == pytest.approx(milliseconds, rel=0.1)
    apart, ideal = (
        card_step(
            counted, box, box.cards[0], Holding(held, (experts,) * LAYERS, 16), popularity, depth, factors=factors
        )
        for factors in (APART, IDEAL)
    )
    assert ideal.seconds < apart.seconds < min(step.seconds, milliseconds / 1000)


def test_hit_rates_explain_what_a_peer_was_measured_to_do() -> None:
    """FreeToken on one H200: 8.6 ms a token and 2.7 ms for each expert that a layer misses."""
    for slots, tokens_per_second in ((128, 66), (256, 75)):
        missing = Counted(skewed(512, 10), 1).missed(slots)
        assert 1000 / (8.6 + 2.7 * missing) == pytest.approx(tokens_per_second, rel=0.2)


def test_one_h200_is_predicted_between_its_peers_and_its_limit() -> None:
    """llama.cpp with all experts on the CPU decodes 18 tok/s there, FreeToken with 25 % in slots 48 and 66; all in VRAM
    94 and 127. Jubako's own kernels: 2.76 ms a step, 4.45 of four columns."""
    counted, box = census(draft=False), measured()
    card = box.cards[0]
    held = Holding((512,) * LAYERS, (512,) * LAYERS, 16)
    whole = card_step(counted, box, card, held, EVEN)
    four = card_step(counted, box, card, held, EVEN, columns=4)
    assert whole.seconds - CALIBRATED.host == pytest.approx(2.76e-3, rel=0.05)
    assert four.seconds - CALIBRATED.host == pytest.approx(4.45e-3, rel=0.05)
    few = replace(held, slots=(26,) * LAYERS)
    quarter = replace(held, slots=(128,) * LAYERS)
    assert card_step(counted, box, card, few, EVEN).rate > 41
    for popularity, peer in ((EVEN, 48), (skewed(512, 10), 66)):
        predicted = card_step(counted, box, card, quarter, popularity).rate
        limit = card_step(counted, box, card, quarter, popularity, factors=IDEAL).rate
        assert peer < predicted < limit
