"""Steps of several columns and sequences, and taking tokens back: the bits that feeding tokens one by one gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from measure.networks import narrow

import jubako
from jubako import _cpu
from jubako.engine.executor import STEP_COLUMNS
from jubako.measure.synth import synth

TINY = Path(__file__).parents[1] / "data" / "tiny"
ODD = {  # sizes of random networks that no vector width divides evenly
    "wide heads": {"gdn_dim": 80, "gdn_key_heads": 3, "gdn_value_heads": 6},
    "one key head": {"gdn_dim": 48, "gdn_key_heads": 1, "gdn_value_heads": 6, "layers": 5},
}


@pytest.fixture(scope="module", params=["tiny", *ODD])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tiny":
        return TINY / "tiny-mixed.gguf"
    path = tmp_path_factory.mktemp("step") / "net.gguf"
    synth(path, narrow(**ODD[request.param]))
    return path


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


def test_random_steps_give_the_bits_of_single_tokens(path: Path, isa: str) -> None:
    """Up to three sequences a step, of 1 to 16 columns together; any number of them is kept; prompts come between."""
    model = jubako.load(path, device="cpu")
    rng = np.random.default_rng(7)

    def draw(count: int) -> list[int]:
        return [int(id) for id in rng.integers(0, model.config.vocabulary, count)]

    executor = model.executor
    texts = [draw(int(rng.integers(1, 30))) for _ in range(3)]
    states = [executor.new_state(256) for _ in texts]
    for text, state in zip(texts, states, strict=True):
        executor.forward(text, state, last_only=True)
    for _ in range(24 if "tiny" in path.name else 8):
        chosen = [int(i) for i in rng.permutation(3)[: rng.integers(1, 4)]]
        columns = [draw(int(rng.integers(1, STEP_COLUMNS // len(chosen) + 1))) for _ in chosen]
        results = executor.step([(ids, states[i]) for i, ids in zip(chosen, columns, strict=True)])
        for i, ids, logits in zip(chosen, columns, results, strict=True):
            assert same_bits(logits.array(), model.session(256).logits([*texts[i], *ids])[-len(ids) :])
            kept = int(rng.integers(1, len(ids) + 1))
            if kept < len(ids) or rng.integers(2):
                states[i].keep(kept)
            texts[i] += ids[:kept]
        if rng.integers(6) == 0 and len(texts[0]) < 180:
            more = draw(int(rng.integers(1, 25)))
            executor.forward(more, states[0], last_only=True)
            texts[0] += more
        if rng.integers(4) == 0:
            states[1].settle()
    for text, state in zip(texts, states, strict=True):
        session = model.session(256)
        single = [session.decode(id) for id in [*text, 1, 2, 3]][-3:]
        assert same_bits(executor.forward([1, 2, 3], state, last_only=False), np.stack(single))


def test_less_can_be_kept_a_second_time() -> None:
    model = jubako.load(TINY / "tiny-mixed.gguf", device="cpu")
    session, other = model.session(64), model.session(64)
    session.prefill([5, 6, 7])
    session.step([1, 2, 3, 4, 5])
    session.keep(4)
    session.keep(2)
    assert session.ids == [5, 6, 7, 1, 2] and session.length == 5
    assert same_bits(session.decode(9), other.prefill([5, 6, 7, 1, 2, 9]))


def test_settling_makes_the_state_that_reading_makes() -> None:
    model = jubako.load(TINY / "tiny-mixed.gguf", device="cpu")
    session, other = model.session(64), model.session(64)
    for ids in ([1, 2, 3], [4], [5, 6, 7]):
        session.step([*ids, 8, 9, 10])
        session.keep(len(ids))
    other.prefill([1, 2, 3, 4, 5, 6, 7])
    session.state.settle()  # type: ignore[attr-defined]
    for mine, theirs in zip(session.state.layers, other.state.layers, strict=True):  # type: ignore[attr-defined]
        if isinstance(mine, _cpu.GdnState):
            assert mine.pending == 0 and mine.position == theirs.position == 7
            assert same_bits(mine.memory, theirs.memory)
            assert same_bits(mine.conv[4:7], theirs.conv[4:7])


def test_the_reference_takes_tokens_back_too() -> None:
    model = jubako.load(TINY / "tiny-mixed.gguf", device="reference")
    session, other = model.session(64), model.session(64)
    session.prefill([5, 6, 7])
    logits = session.step([1, 2, 3, 4])
    session.keep(2)
    after = session.decode(9)
    other.prefill([5, 6, 7])
    assert same_bits(logits[:2], np.stack([other.decode(1), other.decode(2)]))
    assert same_bits(after, other.decode(9))


def test_steps_are_checked_against_the_context_and_the_vocabulary() -> None:
    session = jubako.load(TINY / "tiny-mixed.gguf", device="cpu").session(8)
    session.prefill([1] * 6)
    with pytest.raises(jubako.RequestError, match="9 tokens do not fit in the context of 8"):
        session.step([1, 2, 3])
    with pytest.raises(jubako.RequestError, match="token id 1024"):
        session.step([1024])
    assert session.length == 6
