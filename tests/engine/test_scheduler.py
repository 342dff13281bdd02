"""Several requests together: each has the text it would have alone, none waits for ever, errors stay its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
from together import SMALL, Heard, alone, request, run, words

import jubako
from jubako.core import Failed, Finished, Reading, Request, Tokens
from jubako.engine.depth import Plan
from jubako.engine.plan import plan_memory
from jubako.engine.scheduler import Scheduler
from jubako.errors import CardLostError

TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny-mixed.gguf"


@pytest.fixture(scope="module")
def small() -> jubako.Model:
    """With a draft layer."""
    return jubako.load(SMALL, context=4096)


@pytest.fixture(scope="module")
def tiny() -> jubako.Model:
    return jubako.load(TINY)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as many as are allowed, of both proposers in turn, whatever they gain."""
    turns = iter(range(10**9))

    def plan(costs: object, acceptance: object, layer: int, suffix: int, match: int, sequences: int) -> Plan:
        return Plan("suffix", suffix) if suffix and next(turns) % 2 else Plan("layer", layer)

    monkeypatch.setattr("jubako.engine.draft.best_plan", plan)


@pytest.fixture(scope="module")
def crowd(small: jubako.Model) -> list[tuple[Request, list[int]]]:
    """Requests of many lengths, greedy and seeded, with their texts alone."""
    rng = np.random.default_rng(7)
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 40},
        {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.3},
    ]
    requests = [
        request(f"r{i}", words(rng, int(rng.integers(1, 250))), int(rng.integers(1, 24)), seed=i, **options[i % 4])
        for i in range(10)
    ]
    return [(one, alone(small, one)) for one in requests]


@pytest.mark.parametrize("drafts", [0, 3, None])
def test_each_text_is_what_it_would_be_alone(
    small: jubako.Model, crowd: list[tuple[Request, list[int]]], eager: None, drafts: int | None
) -> None:
    """Some join while others decode, two wait for a place."""
    scheduler = Scheduler(small, sequences=8, drafts=drafts, prefix_bytes=64 << 20)
    for one, _ in crowd[:6]:
        scheduler.submit(one)
    heard = Heard()
    for _ in range(9):
        heard.take(scheduler.step())
    heard.take(run(scheduler, *(one for one, _ in crowd[6:])).events)
    for one, text in crowd:
        assert heard.tokens(one.id) == text
        end = heard.end(one.id)
        assert isinstance(end, Finished) and end.stats.finish_reason == "length"
        assert end.stats.generated_tokens == one.max_tokens and end.stats.prompt_tokens == len(one.prompt)


def test_drafts_are_used_and_shared_out(small: jubako.Model, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = small.encode("one two three four five six seven eight " * 6)
    scheduler = Scheduler(small, drafts=3, prefix_bytes=1 << 20)
    end = run(scheduler, request("a", prompt, 40)).end("a")
    assert isinstance(end, Finished) and sum(end.stats.accepted) > 0 and end.stats.steps < 39
    seen: list[int] = []
    step = small.executor.step

    def watch(parts: Any) -> Any:
        seen.append(sum(len(ids) for ids, _ in parts))
        return step(parts)

    monkeypatch.setattr(small.executor, "step", watch)
    run(scheduler, *(request(f"r{i}", prompt[i:], 12, drafts=15) for i in range(8)))
    assert 8 < max(seen) <= 16


def test_a_stop_token_and_top_logprobs(small: jubako.Model) -> None:
    prompt = small.encode("def main():")
    first = alone(small, request("a", prompt, 8))
    heard = run(Scheduler(small), request("a", prompt, 8, stop_ids=frozenset([first[4]]), top_logprobs=2))
    assert heard.tokens("a") == first[: first.index(first[4])]
    end = heard.end("a")
    assert isinstance(end, Finished) and end.stats.finish_reason == "stop"
    logits = small.logits(prompt)[-1].double()
    expected = (logits - logits.logsumexp(0)).topk(2)
    choice = next(event for _, event in heard.events if isinstance(event, Tokens)).tokens[0]
    assert [id for id, _ in choice.top] == expected.indices.tolist()
    assert choice.logprob == pytest.approx(float(expected.values[0]), abs=1e-5)


def test_a_follow_up_resumes_where_the_turn_ended(small: jubako.Model) -> None:
    rng = np.random.default_rng(1)
    scheduler = Scheduler(small)
    first = request("a", words(rng, 200), 20, temperature=0.9, seed=3)
    answer = run(scheduler, first).tokens("a")
    second = request("b", (*first.prompt, *answer, *words(rng, 30)), 20, seed=4, temperature=0.9)
    heard = run(scheduler, second)
    end = heard.end("b")
    assert isinstance(end, Finished) and end.stats.cached_tokens == len(first.prompt) + len(answer) - 1
    assert heard.tokens("b") == alone(small, second)


def test_another_conversation_resumes_from_a_kept_position(small: jubako.Model) -> None:
    rng = np.random.default_rng(2)
    system = words(rng, 333)
    scheduler = Scheduler(small)
    run(scheduler, request("a", (*system, *words(rng, 50)), 4, keep=(333,)))
    other = request("b", (*system, *words(rng, 70)), 12)
    heard = run(scheduler, other)
    assert heard.reading("b")[0] == Reading(333, 403, 333)
    assert heard.tokens("b") == alone(small, other)
    assert scheduler.status()["prefix"]["hits"] == 1


def test_the_same_prompt_again_reads_less_than_a_page(small: jubako.Model) -> None:
    prompt = words(np.random.default_rng(3), 500)
    scheduler = Scheduler(small)
    first = run(scheduler, request("a", prompt, 8))
    again = run(scheduler, request("b", prompt, 8))
    assert again.tokens("b") == first.tokens("a")
    assert again.reading("b")[0].cached == 448


def test_a_common_beginning_is_read_once_by_requests_that_come_together(small: jubako.Model) -> None:
    rng = np.random.default_rng(4)
    system = words(rng, 560)
    requests = [request(f"r{i}", (*system, *words(rng, 40 + i)), 3) for i in range(4)]
    scheduler = Scheduler(small)
    heard = run(scheduler, *requests)
    for one in requests:
        assert heard.tokens(one.id) == alone(small, one)
    assert scheduler.status()["totals"]["prompt_tokens"] < 560 + 4 * 64


def test_cancelling_keeps_what_was_read(small: jubako.Model) -> None:
    prompt = words(np.random.default_rng(5), 700)
    scheduler = Scheduler(small)
    scheduler.submit(request("a", prompt))
    heard = Heard()
    heard.take(scheduler.step())
    scheduler.cancel("a")
    heard.take(scheduler.step())
    end = heard.end("a")
    assert isinstance(end, Finished) and end.stats.finish_reason == "cancelled" and end.stats.generated_tokens == 0
    assert not scheduler.busy
    read = heard.reading("a")[-1].read
    assert 0 < read < 700
    again = run(scheduler, request("b", prompt, 5))
    assert again.reading("b")[0].cached == read
    assert again.tokens("b") == alone(small, request("b", prompt, 5))


def test_cancelling_while_waiting_and_while_decoding(small: jubako.Model) -> None:
    scheduler = Scheduler(small, sequences=1)
    prompt = words(np.random.default_rng(6), 100)
    heard = Heard()
    for id in "ab":
        scheduler.submit(request(id, prompt, 50))
    while not heard.tokens("a"):
        heard.take(scheduler.step())
    scheduler.cancel("a")
    scheduler.cancel("b")
    scheduler.cancel("unknown")
    heard.take(scheduler.step())
    for id in "ab":
        end = heard.end(id)
        assert isinstance(end, Finished) and end.stats.finish_reason == "cancelled"
    assert not scheduler.busy and scheduler.step() == []


def test_broken_numbers_end_only_their_own_request(tiny: jubako.Model) -> None:
    rng = np.random.default_rng(8)
    requests = [request(f"r{i}", words(rng, 60), 12) for i in range(3)]
    scheduler = Scheduler(tiny)

    def poison(step: int) -> None:
        if step == 5:
            scheduler._running[1].state.layers[0].memory[:] = np.nan

    heard = run(scheduler, *requests, after=poison)
    end = heard.end("r1")
    assert isinstance(end, Failed) and end.kind == "engine" and "broke down" in end.message
    for id in ("r0", "r2"):
        assert isinstance(heard.end(id), Finished)
    assert heard.tokens("r0") == alone(tiny, requests[0]) and heard.tokens("r2") == alone(tiny, requests[2])
    again = run(scheduler, request("again", requests[1].prompt, 12))
    assert again.tokens("again") == alone(tiny, requests[1])


def test_a_failing_step_fails_those_in_it_and_the_next_go_on(
    tiny: jubako.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(tiny)

    def broken(parts: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(tiny.executor, "step", broken)
        end = run(scheduler, request("a", (1, 2, 3), 5)).end("a")
    assert end == Failed("engine", "MemoryError: no memory")
    assert run(scheduler, request("a", (1, 2, 3), 5)).tokens("a") == alone(tiny, request("a", (1, 2, 3), 5))


def test_a_lost_card_ends_the_engine(tiny: jubako.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't one request's failure: the process can use no card any more."""

    def lost(parts: object) -> None:
        raise CardLostError("GPU 1 stopped answering")

    monkeypatch.setattr(tiny.executor, "step", lost)
    with pytest.raises(CardLostError):
        run(Scheduler(tiny), request("a", (1, 2, 3), 5))


def test_a_long_prompt_and_those_who_decode_take_turns(tiny: jubako.Model) -> None:
    rng = np.random.default_rng(9)
    scheduler = Scheduler(tiny)
    heard = Heard()
    scheduler.submit(request("short", words(rng, 20), 400))
    while not heard.tokens("short"):
        heard.take(scheduler.step())
    scheduler.submit(request("long", words(rng, 4000), 2))
    order: list[str] = []
    while scheduler.busy:
        events = scheduler.step()
        heard.take(events)
        order += [kind for one, event in events if (kind := _kind(one, event))]
    chunks = "".join(order).split("t")  # t: tokens for the short one, r: a chunk of the long one
    assert max(len(run) for run in chunks[:-1]) == 1, "the short one waits for one chunk at most"
    assert "r" in chunks and heard.end("long")
    assert len(heard.tokens("short")) == 400


def _kind(id: str, event: object) -> str:
    if isinstance(event, Tokens) and id == "short":
        return "t"
    return "r" if isinstance(event, Reading) and id == "long" and event.read else ""


def test_prompts_are_read_in_turn(tiny: jubako.Model) -> None:
    rng = np.random.default_rng(10)
    scheduler = Scheduler(tiny)
    heard = run(scheduler, request("long", words(rng, 6000), 1), request("short", words(rng, 300), 1))
    ends = [id for id, event in heard.events if isinstance(event, Finished)]
    assert ends == ["short", "long"]


def test_more_requests_than_sequences_all_come_to_an_end(tiny: jubako.Model) -> None:
    rng = np.random.default_rng(11)
    requests = [request(f"r{i}", words(rng, int(rng.integers(5, 90))), 7) for i in range(9)]
    scheduler = Scheduler(tiny, sequences=2, columns=2)
    most = 0

    def watch(_: int) -> None:
        nonlocal most
        most = max(most, scheduler.status()["sequences"]["running"])

    heard = run(scheduler, *requests, after=watch)
    assert most == 2
    for one in requests:
        assert heard.tokens(one.id) == alone(tiny, one)


def test_a_pool_too_small_for_all_makes_requests_wait(tiny: jubako.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one whole context and a little: two long answers run one after the other, checkpoints make way."""
    memory, executor = psutil.virtual_memory(), cast(Any, tiny.executor)
    page = executor.new_pool(1)
    few = 9000 * page.page_bytes // page.page_tokens + 2 * executor.new_state(64).fixed_bytes
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory._replace(available=few))
    scheduler = Scheduler(tiny, sequences=2, prefix_bytes=1000)
    rng = np.random.default_rng(12)
    requests = [request(f"r{i}", words(rng, 500), 7000, stop_ids=frozenset()) for i in range(2)]
    for one in requests:
        scheduler.submit(one)
    scheduler.step()
    status = scheduler.status()
    assert status["sequences"]["running"] == 1 and status["sequences"]["waiting"] == 1
    scheduler.cancel("r0")
    scheduler.step()
    assert scheduler.status()["sequences"] == {"running": 1, "waiting": 0, "limit": 2}


def test_what_can_never_be_done_is_refused(tiny: jubako.Model) -> None:
    scheduler = Scheduler(tiny)
    for wrong, says in [
        (request("a", ()), "empty"),
        (request("a", (1, 1024)), "token id 1024 is outside the vocabulary of 1024"),
        (request("a", (1,) * 8193), "8193 tokens do not fit in the context of 8192"),
        (request("a", (1,), 0), "max_tokens is 0"),
        (request("a", (1,), drafts=99), "drafts is 99"),
    ]:
        with pytest.raises(jubako.RequestError, match=says):
            scheduler.submit(wrong)
    scheduler.submit(request("a", (1,)))
    with pytest.raises(jubako.RequestError, match="'a' is in use"):
        scheduler.submit(request("a", (2,)))
    with pytest.raises(jubako.RequestError, match="sequences is 17"):
        Scheduler(tiny, sequences=17)
    with pytest.raises(jubako.MachineError, match="one sequence at a time"):
        Scheduler(jubako.load(TINY, device="reference"))


def test_memory_is_planned_and_refused_with_the_sums() -> None:
    plan = plan_memory(free=10**9, sequences=4, context=1000, token_bytes=1000, fixed_bytes=10**6, prefix_bytes=None)
    assert plan.pool_tokens == 4000 + plan.prefix_bytes // 1000 and plan.total <= 10**9
    tight = plan_memory(free=10**9, sequences=8, context=300_000, token_bytes=1000, fixed_bytes=10**6, prefix_bytes=0)
    assert tight.pool_tokens == 500_000
    with pytest.raises(
        jubako.MachineError, match=r"needs 1.20 GB .* 8 sequences 0.01 GB .* 1.00 GB of memory are free"
    ):
        plan_memory(free=10**9, sequences=8, context=1_200_000, token_bytes=1000, fixed_bytes=10**6, prefix_bytes=0)


def test_status_counts_what_happened(tiny: jubako.Model) -> None:
    scheduler = Scheduler(tiny)
    rng = np.random.default_rng(13)
    run(scheduler, *(request(f"r{i}", words(rng, 100), 5) for i in range(2)))
    status = scheduler.status()
    assert status["totals"] == {"prompt_tokens": 200, "cached_tokens": 0, "generated_tokens": 10}
    assert status["prefix"]["entries"] == 4 and status["prefix"]["misses"] == 2
    assert status["kv"]["tokens"] == 4 * 64 and status["step"]["count"] >= 6
    assert status["step"]["ms"] == pytest.approx(sum(status["step"]["stages"].values()))
    assert status["memory"]["process_bytes"] > 0
    ram, _ = status["boxes"]
    assert {part["name"] for part in ram["parts"]} == {"dense weights", "experts", "keys and values", "saved states"}
