"""Which cards are used, and what is said of those that can't be."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import jubako
from jubako.arch.weights import load_network
from jubako.cli import _numbers
from jubako.engine.gpu import cards_choice, several
from jubako.engine.gpu import device as gpu_device
from jubako.engine.gpu import executor as executor_module
from jubako.errors import CardLostError, MachineError, RequestError
from jubako.files import open_model

pytest.importorskip("triton")
CARDS: list[tuple[str, tuple[int, int], int, int, float]] = [
    ("A100", (8, 0), 70, 80, 2.0),
    ("Tesla P40", (6, 1), 20, 24, 0.3),
    ("V100", (7, 0), 1, 32, 0.9),
    ("Gone", (9, 0), 0, 0, 1.0),
]


def number(card: object) -> int:
    """A card's number, however it is named."""
    found = card.index if isinstance(card, torch.device) else card
    assert isinstance(found, int)
    return found


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Three cards: one good, one too old, one that another process has filled; a fourth has fallen off the bus."""

    def memory(device: object) -> tuple[int, int]:
        index = number(device)
        if index == 3:
            raise RuntimeError("CUDA error: device is lost\nmore")
        return int(CARDS[index][2] * 1e9), int(CARDS[index][3] * 1e9)

    for name, value in {
        "device_count": lambda: 4,
        "init": lambda: None,
        "get_device_name": lambda index: CARDS[number(index)][0],
        "get_device_capability": lambda index: CARDS[number(index)][1],
        "mem_get_info": memory,
        "get_device_properties": lambda index: SimpleNamespace(
            memory_clock_rate=CARDS[number(index)][4] * 1e6, memory_bus_width=4096
        ),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return monkeypatch


def test_cards_that_cannot_be_used_are_left_out_with_a_sentence(
    machine: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert several.cards_of(None) == [torch.device("cuda", 0)]
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 1 (Tesla P40) has compute capability 6.1; 7.0 is the oldest that can be used: going on with GPU 0",
        "GPU 3 does not answer: CUDA error: device is lost: going on with GPU 0",
        "GPU 2 (V100) is taken: 1.0 of its 32.0 GB are free: going on with GPU 0",
    ]


def test_none_left_is_an_error_that_names_each(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match=r"GPU 1 \(Tesla P40\).* 6\.1.*; GPU 9 is not there; this machine has GPUs"):
        several.cards_of([1, 9])


def test_layers_go_by_speed_and_room(machine: pytest.MonkeyPatch, tiny: Path) -> None:
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    wanted = {"kv_bits": 8, "sequences": 1, "tokens": 1024, "context": 1024}
    both = [torch.device("cuda", 0), torch.device("cuda", 2)]
    runs = several.runs_of(network, both, [10**9, 10**9], **wanted)
    assert len(runs[0]) > len(runs[1]) >= 1 and runs[1].stop == network.config.layers
    with pytest.raises(MachineError, match="do not fit on 2 cards"):
        several.runs_of(network, both, [1000, 1000], **wanted)


def test_a_context_asked_for_is_kept_where_short_pieces_of_prompts_leave_room(
    machine: pytest.MonkeyPatch, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two cards that have room for the model, but not for 4,096 tokens of a prompt beside it."""
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    both = [torch.device("cuda", 0), torch.device("cuda", 2)]
    made = SimpleNamespace(piece=4096, chunk=32_768)
    machine.setattr(executor_module, "GpuExecutor", lambda *arguments, **options: made)
    machine.setattr(several, "FileSource", lambda device: SimpleNamespace(close=lambda: None))
    machine.setattr(several, "make_ready", lambda executor, more: None)
    rooms = [several.TIGHT + 15 * 10**7 - gpu_device.RESERVE] * 2
    with caplog.at_level(logging.WARNING):
        several.cards_executor(network, both, rooms, 8, 1024, 1, True)
    assert (made.piece, made.chunk) == (512, 4096)
    assert "prompts are read in pieces of 512 tokens" in caplog.text
    for context, room in ((None, rooms[0]), (1024, rooms[0] - 3 * 10**8)):
        with pytest.raises(MachineError, match="do not fit on 2 cards"):
            several.cards_executor(network, both, [room, room], 8, context, 1, True)


def test_no_more_than_vram_is_taken(machine: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    machine.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    device = torch.device("cuda", 0)
    assert gpu_device.free_bytes(device, 32 * 10**9) == 32 * 10**9 - gpu_device.RESERVE
    assert shares == [pytest.approx((32e9 - gpu_device.CONTEXT) / 80e9)]
    assert gpu_device.free_bytes(device, None) == 70 * 10**9 - gpu_device.RESERVE


def test_numbers_of_gpus(tiny: Path) -> None:
    assert _numbers("0, 1") == (0, 1)
    assert _numbers(None) is None
    with pytest.raises(RequestError, match="--gpus is 'all'"):
        _numbers("all")
    with pytest.raises(RequestError, match="at least one GPU"):
        jubako.load(tiny / "tiny-bf16.gguf", gpus=())


def test_halves_are_taken_where_they_are_measured_to_pay(machine: pytest.MonkeyPatch, tiny: Path) -> None:
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    two = [torch.device("cuda", 0), torch.device("cuda", 2)]
    choose = several._halves
    for seconds, pays in ((1e-9, True), (1.0, False), (float("inf"), False)):
        machine.setattr(cards_choice, "exchange_seconds", lambda devices, hidden, seconds=seconds: seconds)
        assert choose(network, two, 1e9, "auto") is pays
        assert choose(network, two, 1e9, "halves")
    assert not choose(network, [*two, two[0]], 1e9, "auto")
    with pytest.raises(MachineError, match="shared by two cards, not by 3"):
        choose(network, [*two, two[0]], 1e9, "halves")
    wanted = {"kv_bits": 8, "sequences": 1, "tokens": 1024, "context": 1024}
    cards_choice.halves_fit(network, [10**9, 10**9], **wanted)
    with pytest.raises(MachineError, match=r"GB of card 1, which has 0\.0 GB free; split the layers"):
        cards_choice.halves_fit(network, [10**9, 1000], **wanted)
    with pytest.raises(RequestError, match="split is 'both'"):
        jubako.load(tiny / "tiny-bf16.gguf", split="both")


def test_a_model_too_large_for_all_cards_lies_in_main_memory_too(
    machine: pytest.MonkeyPatch, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = load_network(open_model([tiny / "tiny-bf16.gguf"]))
    machine.setattr(torch.cuda, "mem_get_info", lambda device: ((70 + number(device)) * 10**9, 80 * 10**9))
    machine.setattr(gpu_device, "tokens_that_fit", lambda *arguments: 0)
    machine.setattr(gpu_device, "_planned", lambda network, devices, wish, progress: (devices, wish.gpus))

    def refuse(*arguments: object) -> None:
        raise MachineError("too large")

    machine.setattr(several, "cards_executor", refuse)
    with caplog.at_level(logging.WARNING):
        both = [torch.device("cuda", 0), torch.device("cuda", 2)]
        assert gpu_device.gpu_executor(network, 8, None, gpus=(0, 2)) == (both, (0, 2))
    assert "too large: main memory is used, too" in caplog.text
    with pytest.raises(MachineError, match="too large"):
        gpu_device.gpu_executor(network, 8, None, gpus=(0, 2), split="halves")


class Failing:
    """An executor of two cards whose steps end in an error."""

    devices = (torch.device("cuda", 0), torch.device("cuda", 1))
    ops = SimpleNamespace(on_card=nullcontext, awake=nullcontext)

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    @executor_module.on_card
    def step(self) -> None:
        raise self._error


def test_a_card_lost_in_a_step_is_named(machine: pytest.MonkeyPatch) -> None:
    """The card that no longer answers, not the one whose launch failed; other faults are passed on as they are."""
    failing = Failing(RuntimeError("CUDA error: unspecified launch failure"))
    answers = {0: True, 1: False}

    def synchronize(device: torch.device) -> None:
        if not answers[number(device)]:
            raise RuntimeError("CUDA error: device is lost\nmore")

    machine.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(CardLostError, match="GPU 1 stopped answering: CUDA error: device is lost; start again"):
        failing.step()
    answers[1] = True
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        failing.step()


def test_a_card_that_is_full_in_a_step_is_named(machine: pytest.MonkeyPatch) -> None:
    """Wherever memory is taken: before a graph is captured, for drafts, for a state that is resumed."""
    free = {0: 9 * 10**9, 1: 10**8}
    machine.setattr(torch.cuda, "empty_cache", lambda: None)
    machine.setattr(torch.cuda, "mem_get_info", lambda device: (free[number(device)], 24 * 10**9))
    with pytest.raises(MachineError) as raised:
        Failing(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has …")).step()
    said = str(raised.value)
    assert said.startswith("what a step works with does not fit: 0.1 of ") and "(1)'s 24.0 GB are free; ask for" in said
