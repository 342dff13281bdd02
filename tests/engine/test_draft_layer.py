"""The draft layer on the CPU: the official network's saved drafts, the reference, and every way to catch up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measure.networks import narrow

import jubako
from jubako import _cpu
from jubako.arch.reference import Reference
from jubako.engine.executor import DraftWish
from jubako.engine.logits import Row
from jubako.measure.synth import synth

TINY = Path(__file__).parents[1] / "data" / "tiny"
FILES = [TINY / "tiny-bf16.gguf", TINY / "tiny-mtp.gguf"]
IDS = np.load(TINY / "reference.npz")["1.ids"].tolist()


@pytest.fixture(scope="module")
def tiny_model() -> jubako.Model:
    return jubako.load(FILES, device="cpu", kv_bits=16)


@pytest.fixture(params=["avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if not _cpu.isa_supported(request.param):
        pytest.skip(f"this processor has no {request.param}")
    before = _cpu.isa()
    _cpu.set_isa(request.param)
    yield request.param
    _cpu.set_isa(before)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def guess(executor: Any, state: Any, next: int, depth: int = 1) -> tuple[list[int], list[np.ndarray]]:
    """The likeliest drafts after `next`, and the logits they came from."""
    seen: list[np.ndarray] = []

    def pick(row: Row) -> int:
        seen.append(row.logits.copy())
        return int(row.logits.argmax())

    [drafts] = executor.draft([DraftWish(next, state, depth, pick)])
    return drafts, seen


@pytest.mark.parametrize("prompt", range(3))
def test_draft_logits_are_the_official_ones(
    tiny_model: jubako.Model, golden: Mapping[str, np.ndarray], prompt: int
) -> None:
    ids = golden[f"{prompt}.ids"].tolist()
    want = golden[f"{prompt}.mtp_logits"]
    executor, state = tiny_model.executor, tiny_model.executor.new_state(1024)
    first = len(ids) - 1 - len(want)
    executor.forward(ids[: first + 1], state, last_only=True)
    got = []
    for id in ids[first + 1 :]:
        got.append(guess(executor, state, id)[1][0])
        executor.forward([id], state, last_only=True)
    rows = np.stack(got)
    assert np.abs(rows - want).max() <= 2e-3 * np.abs(want).max()
    assert np.array_equal(rows.argmax(-1), golden[f"{prompt}.mtp_argmax"][first:])


def test_drafts_further_ahead_are_those_of_the_reference(tiny_model: jubako.Model) -> None:
    """From the layer's own streams, with the first draft's blocks: the budget covers this context."""
    reference = Reference(tiny_model.network)
    for length in (1, 2, 7, 30):
        executor, state = tiny_model.executor, tiny_model.executor.new_state(128)
        executor.forward(IDS[:length], state, last_only=True)
        drafts, seen = guess(executor, state, IDS[length], 4)
        twin = reference.new_state()
        streams = reference.residual(IDS[:length], twin)
        logits, wide = reference.draft(IDS[1 : length + 1], streams, twin)
        for place, draft in enumerate(drafts):
            assert np.abs(seen[place] - logits[-1].numpy()).max() <= 2e-3 * float(logits[-1].abs().max())
            logits, wide = reference.draft([draft], wide[-1:], twin)


@pytest.mark.parametrize("kind", ["tiny", "odd"])
def test_bits_do_not_depend_on_how_the_layer_catches_up(isa: str, kind: str, tmp_path: Path) -> None:
    """Steps, prompts of any length, drafts of other depths before: first drafts come from the same logits."""
    paths = [TINY / "tiny-mixed.gguf", TINY / "tiny-mtp.gguf"]
    if kind == "odd":
        paths = [tmp_path / "net.gguf"]
        synth(paths[0], narrow(draft=True, gdn_dim=48))
    model = jubako.load(paths, device="cpu")
    executor = model.executor
    rng = np.random.default_rng(3)

    def draw(count: int) -> list[int]:
        return [int(id) for id in rng.integers(0, model.config.vocabulary, count)]

    texts, states = [draw(5), draw(70)], [executor.new_state(512) for _ in range(2)]
    for text, state in zip(texts, states, strict=True):
        executor.forward(text, state, last_only=True)
    for _ in range(10):
        picked: list[list[np.ndarray]] = [[], []]

        def pick(row: Row, seen: list[np.ndarray]) -> int:
            seen.append(row.logits.copy())
            return int(row.logits.argmax())

        sure, depths = draw(2), rng.integers(1, 5, 2).tolist()
        if rng.integers(3):
            wishes = [
                DraftWish(sure[i], states[i], depths[i], lambda row, seen=picked[i]: pick(row, seen)) for i in range(2)
            ]
            drafts = executor.draft(wishes)
            for i in range(2):
                assert len(drafts[i]) == len(picked[i]) == depths[i]
                fresh = executor.new_state(512)
                executor.forward(texts[i], fresh, last_only=True)
                assert same_bits(guess(executor, fresh, sure[i])[1][0], picked[i][0])
                assert states[i].draft.length == len(texts[i])
        counts = rng.integers(1, 9, 2).tolist()
        columns = [[sure[i], *draw(counts[i] - 1)] for i in range(2)]
        executor.step([(columns[i], states[i]) for i in range(2)])
        for i in range(2):
            kept = int(rng.integers(1, counts[i] + 1))
            states[i].keep(kept)
            texts[i] += columns[i][:kept]
        if rng.integers(3) == 0:
            more = draw(int(rng.integers(1, 60)))
            executor.forward(more, states[0], last_only=True)
            texts[0] += more


def test_later_drafts_see_blocks_that_drafts_complete() -> None:
    """Far beyond the budget of blocks a later draft sees the first one's choice and every token since: no others."""
    model = jubako.load([TINY / "tiny-mixed.gguf", TINY / "tiny-mtp.gguf"], device="cpu")
    executor = model.executor
    ops: Any = executor.ops  # type: ignore[attr-defined]
    seen: list[tuple[np.ndarray, int]] = []
    attend = ops.sparse_attention

    def watched(q: Any, gate: Any, cache: Any, blocks: Any, counts: Any, position: int) -> Any:
        if cache is state.draft:  # type: ignore[attr-defined]
            seen.append((blocks[0, : counts[0]].copy(), position))
        return attend(q, gate, cache, blocks, counts, position)

    state = executor.new_state(4096)
    ratio, budget = ops.weights.draft.layer.mixer.ratio, model.config.index_blocks(4)
    tokens = [int(id) for id in np.random.default_rng(1).integers(0, 1024, ratio * (budget + 9) + 1)]
    executor.forward(tokens, state, last_only=True)
    ops.sparse_attention = watched
    try:
        guess(executor, state, 5, 2 * ratio)
    finally:
        del ops.sparse_attention
    first, start = seen[0]
    assert len(first) == budget
    for blocks, position in seen[1:]:
        since = range((start + 1) // ratio, (position + 1) // ratio)
        assert blocks.tolist() == [*first.tolist(), *since]


def test_the_reference_drafts_the_same(tiny_model: jubako.Model) -> None:
    reference = jubako.load(FILES, device="reference").executor
    mine = tiny_model.executor
    states = [executor.new_state(256) for executor in (mine, reference)]
    for executor, state in zip((mine, reference), states, strict=True):
        executor.forward(IDS[:20], state, last_only=True)
        executor.step([(IDS[20:25], state)])
        state.keep(3)
    for place in range(23, 30):
        one, other = (guess(e, s, IDS[place], 3) for e, s in zip((mine, reference), states, strict=True))
        assert one[0] == other[0]
        assert np.abs(np.stack(one[1]) - np.stack(other[1])).max() <= 2e-3 * np.abs(np.stack(other[1])).max()
        for executor, state in zip((mine, reference), states, strict=True):
            executor.forward([IDS[place]], state, last_only=True)


def test_drafting_leaves_the_network_as_it_is(tiny_model: jubako.Model) -> None:
    session, other = tiny_model.session(128), tiny_model.session(128)
    for each in (session, other):
        each.prefill(IDS[:40])
    tiny_model.executor.draft([DraftWish(3, session.state, 4)])
    assert torch.equal(torch.from_numpy(session.logits([1, 2])), torch.from_numpy(other.logits([1, 2])))
