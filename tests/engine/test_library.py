"""The library as its users call it: load, logits, generate, sessions, and what they refuse."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import jubako
from jubako.engine.cpu import CpuExecutor

TINY = Path(__file__).parents[1] / "data" / "tiny"
IDS = np.load(TINY / "reference.npz")["0.ids"].tolist()


@pytest.fixture(scope="module")
def model() -> jubako.Model:
    return jubako.load(TINY / "tiny-bf16.gguf")


def test_generation_iterates_over_tokens_and_ends_with_statistics(model: jubako.Model) -> None:
    generation = model.generate(IDS, max_tokens=6)
    tokens = list(generation)
    assert all(isinstance(token, int) for token in tokens)
    stats = generation.stats
    assert (stats.prompt_tokens, stats.generated_tokens, stats.finish_reason) == (len(IDS), 6, "length")
    assert stats.prefill_seconds > 0 and stats.decode_seconds > 0 and stats.tokens_per_second > 0
    assert model.tokenizer is not None
    assert "".join(t.text for t in tokens) + generation.rest == model.tokenizer.decode(tokens)


def test_generation_is_what_repeated_logits_give(model: jubako.Model) -> None:
    ids = list(IDS)
    for token in model.generate(IDS, max_tokens=5):
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)


def test_same_seed_same_text_other_seed_other_text(model: jubako.Model) -> None:
    def text(seed: int) -> list[int]:
        return list(model.generate(IDS, max_tokens=16, temperature=1.0, top_k=50, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(model: jubako.Model) -> None:
    plain = list(model.generate(IDS, max_tokens=8))
    generation = model.generate(IDS, max_tokens=8, stop_ids=[plain[3]])
    assert list(generation) == plain[:3]
    assert generation.stats.finish_reason == "stop"


def test_a_session_reads_only_what_is_new(model: jubako.Model) -> None:
    session = model.session(context=128)
    answer = list(model.generate(IDS, max_tokens=4, session=session))
    follow_up = [*IDS, *answer, 7, 8, 9]
    again = model.generate(follow_up, max_tokens=4, session=session)
    tokens = list(again)
    assert again.stats.cached_tokens == len(IDS) + 3  # the last token of the answer was never fed back
    assert tokens == list(model.generate(follow_up, max_tokens=4))


def test_a_session_with_another_prompt_starts_anew(model: jubako.Model) -> None:
    session = model.session(context=128)
    list(model.generate(IDS, max_tokens=4, session=session))
    other = [5, *IDS]
    generation = model.generate(other, max_tokens=4, session=session)
    assert list(generation) == list(model.generate(other, max_tokens=4))
    assert generation.stats.cached_tokens == 0


def test_closing_an_answer_keeps_the_session_true(model: jubako.Model) -> None:
    session = model.session(context=128)
    generation = model.generate(IDS, max_tokens=50, session=session)
    first = [next(generation), next(generation)]
    generation.close()
    assert session.ids == [*IDS, first[0]]
    assert list(model.generate([*IDS, *first], max_tokens=3, session=session)) == list(
        model.generate([*IDS, *first], max_tokens=3)
    )


def test_the_context_ends_an_answer(model: jubako.Model) -> None:
    session = model.session(context=len(IDS) + 3)
    generation = model.generate(IDS, max_tokens=50, session=session)
    assert list(generation) == list(model.generate(IDS, max_tokens=4))
    assert generation.stats.finish_reason == "length"


def test_an_early_interrupt_keeps_what_was_read(model: jubako.Model) -> None:
    session = model.session(context=2048)
    session.chunk = 16

    def stop(read: int) -> None:
        if read >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(model.generate([3] * 100, session=session, progress=stop))
    assert session.ids == [3] * 32
    assert list(model.generate([3] * 100, max_tokens=2, session=session)) == list(
        model.generate([3] * 100, max_tokens=2)
    )


def test_an_interrupt_within_a_pass_leaves_no_half_read_state(
    model: jubako.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session(context=256)
    list(model.generate(IDS, max_tokens=2, session=session))
    ops = model.executor.ops  # type: ignore[attr-defined]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ops, "route", interrupted)  # the first layer has read the token, the others have not
        with pytest.raises(KeyboardInterrupt):
            session.decode(5)
    assert session.ids == []
    assert list(model.generate(IDS, max_tokens=4, session=session)) == list(model.generate(IDS, max_tokens=4))


def test_two_answers_can_not_share_a_session_at_once(model: jubako.Model) -> None:
    session = model.session(context=128)
    first = model.generate(IDS, max_tokens=4, session=session)
    next(first)
    second = list(model.generate(IDS, max_tokens=4, session=session))
    with pytest.raises(jubako.RequestError, match="used for something else"):
        next(first)
    assert second == list(model.generate(IDS, max_tokens=4))


def test_a_second_thread_is_refused_while_a_session_reads(model: jubako.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session(context=128)
    forward = model.executor.forward

    def meanwhile(*arguments: object, **options: object) -> np.ndarray:
        with pytest.raises(jubako.RequestError, match="another thread"):
            session.reset()
        return forward(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model.executor, "forward", meanwhile)
    assert session.logits(IDS).shape == (len(IDS), 1024)


def test_a_session_of_another_model_is_refused(model: jubako.Model) -> None:
    other = jubako.load(TINY / "tiny-mixed.gguf")
    with pytest.raises(jubako.RequestError, match="another model"):
        model.generate(IDS, session=other.session(context=64))


def test_tokens_that_the_vocabulary_does_not_name_have_no_text(
    model: jubako.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = list(model.generate(IDS, max_tokens=3))
    monkeypatch.setattr(model.tokenizer, "_tokens", model.tokenizer._tokens[: plain[0]])  # type: ignore[union-attr]
    tokens = list(model.generate(IDS, max_tokens=3))
    assert tokens == plain and tokens[0].text == ""


def test_token_ids_may_be_integers_of_any_type(model: jubako.Model) -> None:
    expected = model.logits(IDS[:5])
    for ids in (np.array(IDS[:5], np.uint16), torch.tensor(IDS[:5]), (id for id in IDS[:5])):
        assert torch.equal(model.logits(ids), expected)  # type: ignore[arg-type]


def test_the_8_bit_cache_refuses_heads_it_can_not_hold() -> None:
    config = jubako.load(TINY / "tiny-bf16.gguf").network.config
    with pytest.raises(jubako.MachineError, match="heads of 48 do not fit the 8-bit cache"):
        CpuExecutor(SimpleNamespace(config=replace(config, head_dim=48)), 1, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [1.5]}, "sequence of integers"),
        ({"prompt": np.array([1.0, 2.0])}, "sequence of integers"),
        ({"prompt": [[1, 2]]}, "sequence of integers"),
        ({"prompt": b"12"}, "not text"),
        ({"prompt": [1], "max_tokens": 2.5}, "max_tokens is 2.5; it must be an integer"),
        ({"prompt": [1], "temperature": "1"}, "temperature is '1'; it must be a number"),
        ({"prompt": [1], "top_k": 2.5}, "top_k is 2.5"),
        ({"prompt": [1], "seed": "x"}, "seed is 'x'"),
        ({"prompt": [1024]}, "token id 1024 is outside the vocabulary of 1024"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": [1] * 9000}, "9000 tokens do not fit in the context of 8192"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": [1], "temperature": -1.0}, "temperature is -1.0"),
        ({"prompt": [1], "temperature": float("nan")}, "temperature is nan"),
        ({"prompt": [1], "top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_what_is_refused_says_why(model: jubako.Model, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(jubako.RequestError, match=says):
        model.generate(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"kv_bits": 4}, "kv_bits is 4"),
        ({"threads": 0}, "threads is 0"),
        ({"context": 9000}, "context is 9000; this model takes 1 to 8192"),
        ({"context": 0}, "context is 0"),
        ({"context": 1.5}, "context is 1.5"),
        ({"threads": 1.5}, "threads is 1.5"),
    ],
)
def test_load_refuses_options_it_does_not_know(options: dict[str, object], says: str) -> None:
    with pytest.raises(jubako.RequestError, match=says):
        jubako.load(TINY / "tiny-bf16.gguf", **options)  # type: ignore[arg-type]


def test_a_chat_is_taken_as_a_server_takes_it(model: jubako.Model) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert model.encode_chat(parts) == model.encode_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("Hi", r"messages\[0\] is 'H'; it must be an object"),
        ([("user", "Hi")], r"messages\[0\] is \('user', 'Hi'\); it must be an object"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is 5"),
        ([], "messages is empty"),
    ],
)
def test_what_is_no_chat_says_where(model: jubako.Model, messages: Any, says: str) -> None:
    with pytest.raises(jubako.RequestError, match=says):
        model.encode_chat(messages)


def test_a_missing_file_is_a_clear_error() -> None:
    with pytest.raises(jubako.JubakoError, match=r"nothing-here\.gguf"):
        jubako.load("nothing-here.gguf")


@pytest.mark.parametrize("name", ["a" * 5000, "zero\0byte"])
def test_a_name_that_no_file_can_have_is_a_clear_error(name: str) -> None:
    with pytest.raises(jubako.FileFormatError, match="can't be read"):
        jubako.load(name)


def test_grammars_library_is_needed_for_constrained_answers_alone() -> None:
    code = "import sys; sys.modules['llguidance'] = None; import jubako.engine.model, jubako.engine.scheduler"
    subprocess.run([sys.executable, "-c", code], check=True, close_fds=True)
