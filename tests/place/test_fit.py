"""Plans: what they hold where, that they keep to their limits, and what they say where nothing fits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from place.planned import CARD, census, machine, measured

from jubako.arch.weights import load_network
from jubako.files import open_model
from jubako.measure.like import like
from jubako.ops.gpu import stream
from jubako.ops.gpu.ops import index_ratios
from jubako.ops.gpu.state import StatePool
from jubako.place import fit_card
from jubako.place.census import Census, card_bytes, slot_bytes, take_census
from jubako.place.check import judge
from jubako.place.fit import make_plan
from jubako.place.fit_kv import Token
from jubako.place.known import MODELS, find
from jubako.place.machine import Machine
from jubako.place.plan import Plan, Wish

GB = 10**9


def kept(plan: Plan) -> None:
    """No box holds more than it may."""
    assert plan.fits
    for box in plan.boxes:
        assert 0 <= box.used <= box.limit, box.name
        assert all(part.bytes >= 0 for part in box.parts)


def test_everything_goes_into_a_large_card() -> None:
    counted = census()
    plan = make_plan(counted, machine(1), Wish())
    kept(plan)
    assert plan.resident and plan.slots == (512,) * 49 and plan.context == 262_144
    assert plan.box("VRAM").bytes_of("experts") == 512 * sum(slot_bytes(shape) for shape in counted.experts)
    assert plan.box("VRAM").bytes_of("dense weights") == sum(card_bytes(m) for m in counted.stored)
    assert plan.box("RAM").bytes_of("experts") == 0 and not plan.reads_ssd
    assert judge(plan).verdict == "fits"


@pytest.mark.parametrize(("vram", "ram"), [(10, 64), (12, 64), (24, 64), (48, 64), (12, 24), (16, 27), (24, 200)])
def test_smaller_machines_are_kept_to(vram: int, ram: int) -> None:
    counted = census()
    plan = make_plan(counted, measured(), Wish(vram=vram * GB, ram=ram * GB))
    kept(plan)
    assert plan.box("VRAM").limit == vram * GB and plan.ram == plan.box("RAM").limit <= ram * GB
    assert 0 < plan.link_share < 1 and plan.chunk in (512, 1024, 2048, 4096, 8192, 16384)
    everywhere = plan.box("RAM").bytes_of("experts") + plan.box("SSD").bytes_of("experts")
    assert everywhere == counted.expert_bytes
    assert plan.reads_ssd == (ram < 50)
    assert judge(plan).verdict == ("tight" if ram < 50 or plan.context < 32_768 else "fits")
    assert plan.speed is not None
    assert plan.speed.skewed.rate > plan.speed.flat.rate if plan.slots[0] else vram == 10
    assert (
        plan.speed.limits["flat"] >= plan.speed.flat.rate and plan.speed.limits[8192] >= plan.speed.prompts[8192].rate
    )


def test_more_of_a_machine_is_never_slower() -> None:
    rates = []
    for vram in (10, 16, 32, 48, 64):
        plan = make_plan(census(), measured(), Wish(vram=vram * GB, ram=64 * GB, context=32_768))
        assert plan.speed is not None
        rates.append((plan.slots[0], 8192 / plan.speed.prompts[8192].rate + 512 / plan.speed.skewed.rate))
    assert [slots for slots, _ in rates] == sorted(slots for slots, _ in rates)
    assert all(after <= before * 1.01 for (_, before), (_, after) in pairwise(rates))


def test_slots_can_be_held_back() -> None:
    plan = make_plan(census(), machine(1), Wish(slots=40))
    kept(plan)
    assert plan.slots == (40,) * 49 and plan.ram_experts == (512,) * 49


@pytest.mark.parametrize(("vram", "ram"), [(9, 64), (12, 64), (12, 24), (24, 64)])
def test_a_long_context_lies_in_main_memory_too(vram: int, ram: int) -> None:
    """The newest of its keys and values in video memory, with one layer's others for prompts; experts give way last."""
    counted = census()
    plan = make_plan(counted, measured(), Wish(vram=vram * GB, ram=ram * GB, context=262_144))
    kept(plan)
    assert plan.context == plan.kv_tokens == 262_144 and 4096 <= plan.kv_tokens_vram < 262_144
    near, far, cell = plan.kv_tokens_vram, 262_144 - plan.kv_tokens_vram, counted.cell_bytes(8, True)
    pooled = counted.kv_token_bytes(8, True) - cell
    assert plan.box("VRAM").bytes_of("keys and values") == near * cell + far * cell // 13 + 262_144 * pooled
    assert plan.box("RAM").bytes_of("keys and values") == far * cell
    assert (plan.box("RAM").bytes_of("experts") == counted.expert_bytes) == (ram == 64)
    if vram > 9:
        less = make_plan(counted, measured(), Wish(vram=vram * GB, ram=ram * GB, context=32_768))
        assert less.kv_tokens_vram == 32_768 and less.slots[0] > plan.slots[0] > 0 and less.chunk == plan.chunk


def test_a_context_that_fits_nowhere() -> None:
    few = make_plan(census(), measured(), Wish(vram=8 * GB + GB // 2, ram=64 * GB, context=262_144))
    kept(few)
    assert few.context < 262_144 and "room for" in few.notes[0]


def test_without_a_gpu() -> None:
    plan = make_plan(census(), machine(0), Wish())
    kept(plan)
    assert plan.device == "cpu" and not plan.cards and plan.box("RAM").bytes_of("experts") == census().expert_bytes
    small = make_plan(census(), machine(0), Wish(ram=24 * GB))
    kept(small)
    assert small.reads_ssd and judge(small).verdict == "tight"
    assert small.ram == 24 * GB and 20 < small.ram_experts[0] < 512


def test_what_does_not_fit_says_what_is_missing() -> None:
    plan = make_plan(census(), machine(0), Wish(ram=4 * GB))
    assert not plan.fits and judge(plan).verdict == "does not fit"
    assert "of RAM are needed" in plan.short and "4.0 GB may be used" in plan.short
    asked = make_plan(census(), machine(0), Wish(gpus=(0, 1)))
    assert asked.short == "GPU 0 was asked for and there is none"


def test_a_card_that_is_too_small_leaves_the_cpu() -> None:
    plan = make_plan(census(), machine(1), Wish(vram=4 * GB))
    kept(plan)
    assert plan.device == "cpu" and "The GPU is not used" in plan.notes[0] and "4.0 GB may be used" in plan.notes[0]
    assert not make_plan(census(), machine(1), Wish(vram=4 * GB, gpus=(0,))).fits
    needed = make_plan(census(), machine(1), Wish(vram=4 * GB)).notes[0].split(" of video memory")[0]
    nothing = make_plan(census(), machine(1), Wish(vram=0))
    assert nothing.device == "cpu" and nothing.notes[0] == f"{needed} of video memory are needed and 0 kB may be used."


@pytest.mark.parametrize("wish", [Wish(ram=GB), Wish(ram=3 * GB, slots=10), Wish(ram=GB, slots=10)])
def test_a_large_card_beside_hardly_any_memory(wish: Wish) -> None:
    """The process itself takes 2.6 GB, and what is in no slot must lie somewhere."""
    plan = make_plan(census(), machine(1), replace(wish, gpus=(0,)))
    assert not plan.fits and "of RAM are needed beside the card" in plan.short
    kept(make_plan(census(), machine(1), Wish(ram=3 * GB)))


def test_a_ring_is_as_large_as_the_streams() -> None:
    assert fit_card.RINGS[0] == stream.TOGETHER * stream.TURNS and fit_card.RAW == stream.TURNS // stream.BUFFERS
    assert not any(ring % stream.TURNS for ring in fit_card.RINGS)


def test_a_card_of_8_gb_has_a_smaller_ring() -> None:
    large, small = (make_plan(census(), measured(), Wish(vram=gb * GB, ram=24 * GB, context=4096)) for gb in (9, 8))
    kept(large), kept(small)
    assert (large.device, large.ring) == ("cuda", 256) and (small.device, small.ring) == ("cuda", 64)
    assert 3 * small.box("VRAM").bytes_of("prompt ring") < 2 * large.box("VRAM").bytes_of("prompt ring")


def test_memory_that_others_hold_is_not_planned_with() -> None:
    busy = replace(machine(1), cards=(replace(CARD, free=20 * GB),), ram_free=70 * GB)
    plan = make_plan(census(), busy, Wish())
    kept(plan)
    assert plan.box("VRAM").limit < 20 * GB and plan.ram == 50 * GB  # a tenth of 200 GB stays free


def test_two_cards_share_the_layers() -> None:
    plan = make_plan(census(), machine(2), Wish(vram=40 * GB, ram=100 * GB))
    kept(plan)
    assert [(card.first, card.last) for card in plan.cards] == [(0, 24), (24, 49)]
    assert plan.resident and plan.slots == (512,) * 49
    assert {box.name for box in plan.boxes} == {"VRAM 0", "VRAM 1", "RAM", "SSD"}


def test_cards_that_do_not_hold_it_together_share_main_memory() -> None:
    """Each with slots of its own layers; one card alone where experts are on the SSD, too."""
    plan = make_plan(census(), machine(2), Wish(vram=20 * GB, ram=100 * GB))
    kept(plan)
    assert [(card.index, card.first, card.last) for card in plan.cards] == [(0, 0, 24), (1, 24, 49)]
    alone = make_plan(census(), machine(1), Wish(vram=20 * GB, ram=100 * GB))
    assert not plan.resident and min(plan.slots) > max(alone.slots)
    assert plan.expert_ram == census().expert_bytes and not plan.reads_ssd
    less = make_plan(census(), machine(2), Wish(vram=20 * GB, ram=24 * GB))
    kept(less)
    assert [card.index for card in less.cards] == [0] and "of them GPU 0 is used" in less.notes[0]
    for gpus in ((0, 1), (1, 0), None):
        both = make_plan(census(), machine(2), Wish(vram=80 * GB, gpus=gpus))
        assert tuple(card.index for card in both.cards) == (gpus or (0, 1)) and both.resident
    unequal = replace(machine(2), cards=(replace(CARD, free=1 * GB, total=8 * GB), CARD))
    one = make_plan(census(), unequal, Wish(ram=100 * GB))
    assert [card.index for card in one.cards] == [1] and one.resident and not one.notes


def test_what_several_cards_reach_together() -> None:
    """A step takes each card's share of the layers at its rates; a long prompt is read by all at the same time."""
    slow = replace(CARD, read=CARD.read / 2, matmul=CARD.matmul / 2)
    rates = {}
    for name, cards in (("one", (CARD,)), ("two", (CARD, CARD)), ("unequal", (CARD, slow)), ("slow", (slow,))):
        plan = make_plan(census(), replace(measured(), cards=cards), Wish(vram=80 * GB, gpus=tuple(range(len(cards)))))
        assert plan.speed is not None and plan.resident and len(plan.cards) == len(cards)
        rates[name] = plan.speed.flat.rate, plan.speed.prompts[512].rate, plan.speed.prompts[65536].rate
    assert rates["two"][:2] == pytest.approx(rates["one"][:2])
    assert 1.7 < rates["two"][2] / rates["one"][2] < 2
    for index in range(2):
        assert rates["slow"][index] < rates["unequal"][index] < rates["one"][index]
    assert rates["slow"][2] < rates["unequal"][2] < rates["two"][2]


def test_several_sequences_have_their_states_and_share_the_cache() -> None:
    one, eight = (make_plan(census(), machine(1), Wish(sequences=n)) for n in (1, 8))
    kept(eight)
    difference = eight.box("VRAM").bytes_of("states") - one.box("VRAM").bytes_of("states")
    assert difference == 7 * census().fixed_bytes(0, 0)
    assert one.context <= eight.kv_tokens <= 8 * eight.context


@pytest.mark.parametrize("bits", [8, 16])
def test_state_is_counted_as_it_is_laid_out(bits: int) -> None:
    network = like(find("UD-IQ3_XXS"))
    counted = take_census(network)
    pool = StatePool(network.config, index_ratios(network), 3, 6400, 3200, bits, torch.device("meta"))
    assert pool.nbytes() == counted.fixed_bytes(3, 3200) + (6400 + 64) * counted.kv_token_bytes(bits, True)
    less = StatePool(network.config, index_ratios(network), 3, 6400, 3200, bits, torch.device("meta"), near=640)
    token = Token.of(counted, bits)
    idle = 64 * (token.cells + token.pooled)
    assert less.nbytes() == counted.fixed_bytes(3, 3200) + token.vram(6400, 640) + idle + less.table.nbytes
    assert less.homes is not None and less.homes.host_bytes == (6400 - 640) * token.cells


def test_published_sizes_come_out_of_the_geometry() -> None:
    for known in MODELS:
        counted = take_census(like(known))
        trunk = counted.total - (512 * counted.experts[-1].record + _draft_bytes(counted) if known.draft else 0)
        if known.size:
            assert trunk == pytest.approx(known.size, rel=0.01), known.name
        assert counted.table == 28_800_138_240
    draft = 512 * census().experts[-1].record + _draft_bytes(census())
    assert draft == pytest.approx(find("UD-IQ3_XXS").draft_size, rel=0.1)


def _draft_bytes(counted: Census) -> int:
    return sum(m.bytes for m in counted.draft if m.rows != 248_320)


def test_a_census_counts_every_byte_of_a_file(tiny: Path) -> None:
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    counted = take_census(network)
    stored = open_model([tiny / "tiny-mixed.gguf"]).tensors.values()
    assert counted.total == sum(tensor.nbytes for tensor in stored)


def test_figures_are_stored_and_read_back() -> None:
    box = measured()
    assert Machine.from_json(json.loads(json.dumps(box.as_json()))) == box
    assert box.identity.key != replace(box.identity, driver="other").key
