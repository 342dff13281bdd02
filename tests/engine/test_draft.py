"""Drafts change speed, never the text: against drafts off, whatever is asked of the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure.networks import narrow

import jubako
from jubako.core import Constraint, ThinkingBudget, TokenChoice
from jubako.engine.answer import Answer
from jubako.engine.draft import DraftOptions, probability
from jubako.engine.logits import Row
from jubako.errors import JubakoError
from jubako.measure.synth import synth

TINY = Path(__file__).parents[1] / "data" / "tiny"
GOLDEN = np.load(TINY / "reference.npz")
SMALL = sorted((Path(jubako.__file__).parent / "models").glob("jubako-small*.gguf"))
PROMPTS = (
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path",
    "It was a dark night, and the old man walked slowly along the",
    "one two three one two three one two",
)


@pytest.fixture(scope="module")
def small() -> jubako.Model:
    return jubako.load(SMALL, device="cpu")


@pytest.fixture(scope="module")
def tiny_model() -> jubako.Model:
    return jubako.load([TINY / "tiny-bf16.gguf", TINY / "tiny-mtp.gguf"], device="cpu", kv_bits=16)


def text(model: jubako.Model, prompt: str | list[int], **options: Any) -> list[int]:
    return [int(token) for token in model.generate(prompt, **options)]


@pytest.mark.parametrize("prompt", range(3))
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_greedy_text_is_the_official_one_at_every_depth(tiny_model: jubako.Model, prompt: int, depth: int) -> None:
    want = GOLDEN[f"{prompt}.greedy"].tolist()
    ids = GOLDEN[f"{prompt}.ids"].tolist()
    generation = tiny_model.generate(ids, max_tokens=len(want), drafts=depth, fixed_drafts=True, stop_ids=())
    assert list(generation) == want
    assert (len(generation.stats.drafted) > 0) == (depth > 0)


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """What an answer may be asked for."""
    options: dict[str, Any] = {
        "max_tokens": int(rng.integers(1, 60)),
        "seed": int(rng.integers(1000)),
        "temperature": float(rng.choice([0.0, 0.0, 0.5, 1.0, 1.7])),
    }
    if rng.integers(2):
        options |= {"top_k": int(rng.choice([0, 5, 40])), "top_p": float(rng.choice([0.9, 1.0])), "min_p": 0.02}
    if rng.integers(3) == 0:
        options |= {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": -0.2}
    if rng.integers(3) == 0:
        options["logit_bias"] = {int(id): float(rng.normal() * 4) for id in rng.integers(0, 1000, 20)}
    if rng.integers(4) == 0:
        options["thinking"] = ThinkingBudget(int(rng.integers(0, 20)), (7,), (7, 11, 13))
    return options


@pytest.mark.parametrize("case", range(12))
def test_text_is_the_same_whatever_is_drafted(small: jubako.Model, case: int) -> None:
    rng = np.random.default_rng(case)
    options = random_options(rng)
    prompt = small.encode(PROMPTS[case % len(PROMPTS)])
    plain = text(small, prompt, **options, drafts=0)
    if len(plain) > 4 and rng.integers(2):  # an end token in the middle of a step
        options["stop_ids"] = [plain[int(rng.integers(2, len(plain)))]]
        plain = text(small, prompt, **options, drafts=0)
    for drafts in ({"drafts": int(rng.integers(1, 16)), "fixed_drafts": True}, {}, {"drafts": 3, "draft_floor": 0.5}):
        session = small.session(len(prompt) + int(rng.choice([20, 64])))
        generation = small.generate(prompt, **options, **drafts, session=session)
        tokens = list(generation)
        assert tokens == plain[: session.context - len(prompt) + 1]
        assert session.ids == [*prompt, *tokens][: len(session.ids)] and len(session.ids) >= len(prompt)
        stats = generation.stats
        assert stats.generated_tokens == len(tokens) <= 1 + stats.steps + sum(stats.accepted)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_text_of_a_random_network_is_the_same(device: str, tmp_path: Path) -> None:
    """Nothing agrees there: every step takes nearly all of its columns back."""
    synth(tmp_path / "net.gguf", narrow(draft=True, gdn_dim=48, vocab=512))
    model = jubako.load(tmp_path / "net.gguf", device=device)
    for seed, temperature in ((1, 0.0), (2, 0.8)):
        options = {"max_tokens": 24 if device == "cpu" else 8, "temperature": temperature, "seed": seed, "stop_ids": ()}
        prompt = [int(id) for id in np.random.default_rng(seed).integers(0, 512, 50)]
        plain = text(model, prompt, **options, drafts=0)
        for depth in (1, 4):
            assert text(model, prompt, **options, drafts=depth, fixed_drafts=True) == plain


def test_a_grammar_holds_with_drafts(small: jubako.Model) -> None:
    constraint = Constraint("regex", r"[a-c]{5,9}(, [0-9]{2}){3}")
    plain = text(small, PROMPTS[1], constraint=constraint, drafts=0)
    for options in ({"drafts": 4, "fixed_drafts": True}, {}):
        assert text(small, PROMPTS[1], constraint=constraint, **options) == plain
    assert small.tokenizer is not None
    assert small.tokenizer.decode(plain)[0] in "abc"


def test_an_error_comes_behind_all_tokens_before_it(small: jubako.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that break down, or a rule's dead end, in the middle of a step: the text up to there is the same."""
    prompt, choose = small.encode(PROMPTS[2]), Answer.choose
    plain = text(small, prompt, max_tokens=20, stop_ids=())

    def breaking(answer: Answer, row: Row) -> TokenChoice | None:
        if answer.position == len(prompt) + 11:
            raise JubakoError("broke down")
        return choose(answer, row)

    monkeypatch.setattr(Answer, "choose", breaking)
    for drafts in (0, 1, 5, 7):
        told, generation = list[int](), small.generate(prompt, stop_ids=(), drafts=drafts, fixed_drafts=True)
        with pytest.raises(JubakoError, match="broke down"):
            told.extend(iter(generation))
        assert told == plain[:11] and (drafts == 0 or generation.stats.steps < 11)


def test_forced_tokens_are_read_in_one_step(small: jubako.Model) -> None:
    """What a thinking budget or a grammar forces needs no guess."""
    options: dict[str, Any] = {
        "thinking": ThinkingBudget(2, (7,), tuple(range(300, 312))),
        "max_tokens": 16,
        "stop_ids": (),
    }
    plain = text(small, PROMPTS[1], **options, drafts=0)
    assert plain[2:14] == list(range(300, 312))
    generation = small.generate(PROMPTS[1], **options)
    assert list(generation) == plain and generation.stats.steps <= 5


def test_repeated_text_is_proposed_without_the_draft_layer() -> None:
    """A network without a draft layer drafts too, from what stands in its context."""
    model = jubako.load(TINY / "tiny-bf16.gguf", device="cpu")
    options: dict[str, Any] = {"max_tokens": 200, "stop_ids": (), "logit_bias": {5: 100.0}}
    plain = model.generate([5, 6, 7, 5], **options, drafts=0)
    want = list(plain)
    drafted = model.generate([5, 6, 7, 5], **options)
    assert list(drafted) == want and plain.stats.steps == 199
    assert drafted.stats.steps < 120 and sum(drafted.stats.accepted) + drafted.stats.steps == 199


def test_a_closed_answer_keeps_the_tokens_that_were_taken(small: jubako.Model) -> None:
    prompt = small.encode(PROMPTS[0])
    plain = text(small, prompt, max_tokens=12, stop_ids=())
    for taken in range(1, 9):
        session = small.session(128)
        generation = small.generate(prompt, max_tokens=50, stop_ids=(), drafts=5, fixed_drafts=True, session=session)
        first = [next(generation) for _ in range(taken)]
        generation.close()
        assert first == plain[:taken] and session.ids == [*prompt, *first[:-1]]
        rest = small.generate([*prompt, *first], max_tokens=12 - taken, stop_ids=(), session=session)
        assert [*first, *rest] == plain and rest.stats.cached_tokens == len(prompt) + taken - 1


def test_log_probabilities_are_those_of_the_network(small: jubako.Model) -> None:
    prompt = small.encode(PROMPTS[0])
    generation = small.generate(prompt, max_tokens=10, temperature=0.9, seed=3, top_logprobs=4, stop_ids=())
    tokens = [int(token) for token in generation]
    logits = small.logits([*prompt, *tokens]).numpy()[len(prompt) - 1 : -1].astype(np.float64)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, choice in zip(logits, generation.choices, strict=True):
        assert choice.logprob == pytest.approx(row[choice.id], abs=1e-5)
        assert [id for id, _ in choice.top] == np.argsort(-row, kind="stable")[:4].tolist()
        assert [p for _, p in choice.top] == pytest.approx(np.sort(row)[::-1][:4].tolist(), abs=1e-5)


def test_probability() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    assert probability(logits, 1) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drafts": 16}, "drafts is 16; it must lie between 0 and 15"),
        ({"drafts": 1.5}, "drafts is 1.5"),
        ({"draft_floor": 2.0}, "the floor of drafts is 2.0"),
        ({"fixed_drafts": True}, "fixed drafts need their number"),
        ({"logit_bias": {10**9: 1.0}, "max_tokens": 1}, "logit_bias: token id 1000000000"),
    ],
)
def test_what_is_refused_says_why(tiny_model: jubako.Model, options: dict[str, Any], says: str) -> None:
    with pytest.raises(jubako.RequestError, match=says):
        list(tiny_model.generate([1, 2], **options))


def test_options_default_to_what_pays() -> None:
    assert DraftOptions().most is None and not DraftOptions().fixed


def test_a_coarser_head_drafts_nearly_as_well_and_changes_nothing(small: jubako.Model) -> None:
    coarse = jubako.load(SMALL, device="cpu", draft_head="Q4_0")
    assert coarse.network.draft is not None and coarse.network.draft.output is not None
    assert coarse.network.draft.output.type.name == "Q4_0" and coarse.network.output is not None
    options: dict[str, Any] = {"max_tokens": 60, "stop_ids": (), "drafts": 2, "fixed_drafts": True}
    kept = []
    for model in (small, coarse):
        generation = model.generate(PROMPTS[0], **options)
        assert list(generation) == text(small, small.encode(PROMPTS[0]), max_tokens=60, stop_ids=(), drafts=0)
        kept.append(sum(generation.stats.accepted) / sum(generation.stats.drafted))
    assert 0.8 * kept[0] < kept[1]


@pytest.mark.parametrize(("kind", "says"), [("Q5_K", "does not quantise to Q5_K"), ("X", "draft_head is 'X'")])
def test_a_head_that_can_not_be_made_says_why(kind: str, says: str) -> None:
    with pytest.raises(jubako.JubakoError, match=says):
        jubako.load([TINY / "tiny-bf16.gguf", TINY / "tiny-mtp.gguf"], device="cpu", draft_head=kind)
    with pytest.raises(jubako.RequestError, match="no draft layer"):
        jubako.load(TINY / "tiny-bf16.gguf", device="cpu", draft_head="Q4_0")
