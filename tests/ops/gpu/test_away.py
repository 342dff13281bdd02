"""Experts that are not in slots: the CPU's threads answer over ordinary memory here, over mapped memory on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from block_rows import rows_of
from gpu_weights import same_bits
from test_mixture import CHOSEN, COUNT, HIDDEN, SIZE, mixture

from jubako import _cpu
from jubako.ops.gpu.away import ANSWERED, BELL, DONE, ERROR, Away, Mailbox, await_rows
from jubako.ops.gpu.experts import Experts, Routed, experts
from jubako.ops.gpu.host import addresses_of
from jubako.ops.gpu.link import MOST, fits, link_of
from jubako.ops.gpu.pinned import copy_of
from jubako.ops.gpu.target import target
from jubako.quant import BY_NAME


class Case:
    """A mixture whose experts `absent` have no slot, and the threads that know them all, as layer 1 of two."""

    def __init__(self, gate: str, down: str, tokens: int, absent: list[int], device: torch.device) -> None:
        self.mixture = mixture(gate, down, "Q8_0", tokens, device)
        shapes = ((gate, SIZE, HIDDEN), (gate, SIZE, HIDDEN), (down, HIDDEN, SIZE))
        blocks = [rows_of(kind, (COUNT, rows), cols, part) for part, (kind, rows, cols) in enumerate(shapes)]
        self.blocks = [copy_of(raw, device) for raw in blocks]
        self.addresses = addresses_of(self.blocks)
        types = [BY_NAME[name].id for name in (gate, gate, down)]
        layer = _cpu.ExpertLayer(types, SIZE, HIDDEN, SIZE, self.addresses)
        self.mailbox = Mailbox.of(CHOSEN, HIDDEN, device)
        self.threads = self.mailbox.threads([layer, layer])
        self.counts = torch.zeros(COUNT, dtype=torch.int32, device=device)
        mine = self.mixture.layer
        table = mine.routed.table.clone()
        table[absent] = -1
        self.layer = Experts(
            mine.router, replace(mine.routed, table=table), mine.shared, Away(1, self.mailbox, self.counts)
        )

    def run(self, routed: Routed | None = None) -> torch.Tensor:
        """All of the layer; what was asked for is there, and so is any trouble."""
        self.threads.begin()
        try:
            return experts(self.layer, self.mixture.input(), routed or self.mixture.routed()).cpu()
        finally:
            self.threads.end()


@pytest.fixture
def device_case(device: torch.device) -> Iterator[list[Case]]:
    """Cases to be closed. Their threads wait busily while the interpreter works: a small pool leaves it a processor."""
    threads, cases = _cpu.threads(), list[Case]()
    _cpu.set_threads(1)
    yield cases
    for case in cases:
        case.threads.close()
    _cpu.set_threads(threads)


@pytest.mark.parametrize(
    ("gate", "down", "absent"),
    [("IQ3_XXS", "IQ4_NL", [0, 3]), ("Q4_K", "Q5_1", list(range(COUNT))), ("BF16", "F16", [1, 2, 3, 4])],
)
def test_bits_do_not_depend_on_where_experts_lie(
    gate: str, down: str, absent: list[int], device: torch.device, device_case: list[Case]
) -> None:
    """One request after the other on the same memory."""
    case = Case(gate, down, 2, absent, device)
    device_case.append(case)
    want = case.mixture.wanted()
    for _ in range(2):
        if gate == "BF16":  # the GPU adds products of plain numbers up in another order
            assert np.allclose(case.run().numpy(), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        else:
            assert same_bits(case.run(), want)
    assert case.mailbox.words[BELL] == case.mailbox.words[DONE] == case.threads.requests > 0
    assert not case.mailbox.trouble
    counts = np.bincount(case.mixture.ids.ravel(), minlength=COUNT)
    assert np.array_equal(case.counts.cpu().numpy(), counts * case.threads.requests)


@pytest.mark.parametrize(("gate", "down", "tokens", "share"), [("IQ3_XXS", "IQ4_NL", 2, 0.5), ("Q4_K", "Q8_0", 1, 1.0)])
def test_experts_fetched_over_the_link(
    gate: str, down: str, tokens: int, share: float, device: torch.device, device_case: list[Case]
) -> None:
    """Some or all of the absent experts come into spare slots, each once, whatever the number of its uses."""
    case = Case(gate, down, tokens, list(range(COUNT)), device)
    device_case.append(case)
    shape, slots = case.layer.routed.shape, case.layer.routed.data
    assert fits(shape, case.addresses)
    [link] = link_of(shape, [case.addresses], COUNT, device)
    room = torch.zeros(COUNT + MOST, shape.bytes, dtype=torch.uint8, device=device)
    room[:COUNT] = slots
    away = replace(case.layer.away, link=link)
    case.layer = replace(case.layer, routed=replace(case.layer.routed, data=room), away=away)
    case.mailbox.state[2] = round(1024 * share)
    assert same_bits(case.run(), case.mixture.wanted())
    chosen = len(np.unique(case.mixture.ids))
    assert int(link.fetched[0]) == int(chosen * share + 0.5)
    assert case.threads.experts == chosen - int(link.fetched[0])
    assert case.mailbox.state[12] == 0  # the next layer's fetching waits until it has asked


def test_nothing_absent_rings_nothing(device: torch.device, device_case: list[Case]) -> None:
    case = Case("Q8_0", "Q8_0", 1, [], device)
    device_case.append(case)
    assert same_bits(case.run(), case.mixture.wanted())
    assert case.mailbox.words[BELL] == 0 and case.threads.requests == 0


def test_an_expert_that_is_nowhere(device: torch.device, device_case: list[Case]) -> None:
    case = Case("Q8_0", "Q8_0", 1, [0, 1, 2, 3, 4], device)
    device_case.append(case)
    case.addresses[case.mixture.ids[0, 0]] = 0
    case.run()
    assert "memory" in case.mailbox.trouble


def test_nobody_answers(device: torch.device, device_case: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is bounded, and after that nothing waits any more."""
    monkeypatch.setattr("jubako.ops.gpu.away.PATIENCE", 50)
    case = Case("Q8_0", "Q8_0", 1, [0, 1, 2, 3, 4], device)
    device_case.append(case)
    case.threads.close()
    experts(case.layer, case.mixture.input(), case.mixture.routed()).cpu()
    assert int(case.mailbox.words[ERROR]) == 1 and "did not answer" in case.mailbox.trouble


@triton.jit
def late_kernel(  # type: ignore[no-untyped-def]
    words, state, number, patience, DONE: tl.constexpr, ERROR: tl.constexpr, ANSWERED: tl.constexpr, FORM: tl.constexpr
):  # fmt: skip
    """A program that is not the first to wait for the rows of a request."""
    await_rows(number, words, state, False, patience, DONE, ERROR, ANSWERED, FORM)


@pytest.mark.parametrize("told", [True, False])
def test_a_program_that_gives_up_says_so(told: bool, device: torch.device) -> None:
    """The program that looks over the bus may still see the answer later."""
    box = Mailbox.of(CHOSEN, HIDDEN, device)
    box.state[ANSWERED] = 7 if told else 6
    late_kernel[(1,)](
        box.words, box.state, 7, 50, DONE=DONE, ERROR=ERROR, ANSWERED=ANSWERED, FORM=target(device).form, num_warps=1
    )
    box.state.cpu()
    assert bool(box.trouble) is not told
