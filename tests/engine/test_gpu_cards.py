"""Layers on several cards: on GPUs where there are some (one can play both), else both are the CPU, on few tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from measure.networks import narrow

pytest.importorskip("triton")

import jubako.engine.gpu.cards as cards_module
from jubako.arch.weights import load_network
from jubako.engine.executor import DraftWish
from jubako.engine.gpu.cards import read_pieces
from jubako.engine.gpu.executor import GpuExecutor
from jubako.files import open_model
from jubako.measure.synth import synth
from jubako.measure.tensor_plan import BlockTypes

CUDA = torch.cuda.is_available()
DEVICES = [torch.device("cuda", card % torch.cuda.device_count()) if CUDA else torch.device("cpu") for card in range(3)]
CONTEXT = 1024


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four layers, the last of which is attention, and a draft layer; two delta nets where it takes long, without tiles
    of tensor cores, which take the interpreter longest."""
    path = tmp_path_factory.mktemp("cards") / "net.gguf"
    small = {"hidden": 256, "gdn_value_heads": 2}
    sizes: dict[str, int] = {"layers": 4} if CUDA else {"layers": 2} | small
    config = narrow(draft=CUDA, vocab=320, experts=4, hyper_rank=32, ngram_rows=200, **sizes)
    dense = "" if CUDA else "Q4_0,"
    synth(path, config, BlockTypes.parse(dense + "ngram=F16,gate_up=Q8_0,down=Q8_0"))
    return load_network(open_model([path]))


def executor(network: Any, runs: Sequence[range] | None, count: int = 0) -> GpuExecutor:
    devices = DEVICES[: len(runs) if runs else count]
    return GpuExecutor(network, devices, runs=runs, context=CONTEXT, tokens=4 * CONTEXT, sequences=4)


def halved(network: Any) -> GpuExecutor:
    return executor(network, None, 2)


def step(made: GpuExecutor) -> np.ndarray:
    [logits] = made.step([([5], made.new_state(CONTEXT))])
    return np.array(logits)


@pytest.fixture(scope="module")
def alone(network: Any) -> np.ndarray:
    """What one card says of a step."""
    return step(executor(network, [range(len(network.layers))]))


def test_a_step_has_the_same_bits_as_on_one_card(network: Any, alone: np.ndarray) -> None:
    """Cut before the layer that injects n-grams."""
    assert np.isfinite(alone).all() and alone.std() > 0
    assert np.array_equal(step(executor(network, [range(1), range(1, len(network.layers))])), alone)


def test_a_step_by_halves_agrees_within_rounding(network: Any, alone: np.ndarray) -> None:
    """Half of every layer and of the vocabulary each: both halves are in their places. Sums are rounded once more, and
    then some of the experts' eight-bit codes; through four layers that came to 4e-3, half of what the reference is off.
    """
    got = step(halved(network))
    assert np.abs(got - alone).max() <= 1e-2 * np.abs(alone).max()


def test_who_answers_any_card_is_awake_while_the_last_one_steps(network: Any) -> None:
    made, awake = executor(network, [range(1), range(1, len(network.layers))]), []

    @contextmanager
    def note(card: int) -> Iterator[None]:
        awake.append(card)
        yield
        awake.remove(card)

    for card, ops in enumerate(made.cards):
        boxes: Any = SimpleNamespace(awake=partial(note, card))
        ops.boxes = boxes
    with made.ops.awake():
        assert awake == [0, 1]
    assert not awake


def everything(made: GpuExecutor) -> list[np.ndarray]:
    """Logits of prompts in pieces, steps with refused columns, drafts, a resumed state, sequences side by side."""
    made.piece = 64
    ids = np.random.default_rng(1).integers(0, 320, 400).tolist()
    state, found = made.new_state(CONTEXT), []
    if len(made.cards) > 1:
        found.append(made.forward(ids[:333], state, last_only=False))
    else:
        found.append(
            np.concatenate([made.forward(ids[at : at + 64], state, last_only=False) for at in range(0, 320, 64)])
        )
        found[0] = np.concatenate([found[0], made.forward(ids[320:333], state, last_only=False)])
    found.append(np.array(made.step([(ids[333:336], state)])[0]))
    state.keep(2)
    for token in ids[340:343]:
        guessed = made.speculate([DraftWish(token, state, 3)])
        found += [np.array(guessed.drafts), np.array(guessed.logits[0])]
        state.keep(1 + len(found) % 3)
    saved = made.save(state)
    other, fresh = made.new_state(CONTEXT), made.new_state(CONTEXT)
    made.resume(other, saved, ids[: saved.position])
    found += [np.array(part) for part in made.step([(ids[:2], other), (ids[5:9], fresh), (ids[9:10], state)])]
    return found


@pytest.mark.skipif(not CUDA, reason="prompts and drafts take the interpreter minutes")
@pytest.mark.parametrize(
    "runs", [[range(1), range(1, 4)], [range(3), range(3, 4)], [range(1), range(1, 2), range(2, 4)]]
)
def test_everything_is_the_same_to_the_bit(network: Any, runs: list[range]) -> None:
    assert differing(everything(executor(network, [range(4)])), everything(executor(network, runs))) == []


@pytest.mark.skipif(not CUDA, reason="prompts and drafts take the interpreter minutes")
def test_halves_of_layers_agree_within_rounding_and_from_run_to_run(network: Any) -> None:
    """Near ties among experts fall otherwise where sums are rounded otherwise: a token's row differs then."""
    one, first, again = (everything(made) for made in (executor(network, [range(4)]), *(halved(network) for _ in "ab")))
    assert differing(first, again) == []
    for want, got, share in ((one[0], first[0], 0.9), (one[1], first[1], 0.5)):
        near = np.abs(want - got).max(-1) <= 2e-2 * np.abs(want).max()
        assert near.mean() >= share


def differing(want: list[np.ndarray], got: list[np.ndarray]) -> list[tuple[int, list[int], float]]:
    """Of what is not the same to the bit: its place, the rows, and the largest difference."""
    assert [part.shape for part in want] == [part.shape for part in got]
    return [
        (place, np.flatnonzero((one != other).any(-1)).tolist(), float(np.abs(one - other).max()))
        for place, (one, other) in enumerate(zip(want, got, strict=True))
        if not np.array_equal(one, other)
    ]


# Prompts in pieces


def test_all_cards_read_at_once_each_piece_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cards of three layers and five pieces, of which only the order is of interest."""
    log: list[tuple[str, int, int]] = []

    def run_layers(ops: Any, columns: Any, streams: torch.Tensor) -> Iterator[None]:
        for layer in range(3):
            log.append(("layer", ops.card, columns.piece))
            streams += 10 ** (3 * ops.card + layer)
            yield

    def card(number: int) -> Any:
        return SimpleNamespace(
            card=number,
            on_card=nullcontext,
            start=lambda columns: torch.full((1,), columns.piece, dtype=torch.int64),
            before=SimpleNamespace(send=lambda streams: streams.clone()) if number else None,
        )

    monkeypatch.setattr(cards_module, "run_layers", run_layers)
    pieces: Any = [[SimpleNamespace(piece=piece)] * 3 for piece in range(5)]
    read = [int(streams) for streams in read_pieces([card(number) for number in range(3)], pieces)]
    assert read == [piece + 111_111_111 for piece in range(5)]
    third = log[9:18]  # the third turn: three cards at work, a layer of each in turn
    assert [entry[1] for entry in log[9 : 9 + 9]] == [0, 1, 2] * 3 and {entry[2] for entry in third} == {0, 1, 2}
