"""The link's share of the absent experts settles where both sides end together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from jubako.engine.gpu.balance import LAG, MOST, Balance

ABSENT, FETCHING, COMPUTING = 9, 42e-6, 31e-6  # experts of a layer; seconds for one


def balance() -> Balance:
    threads = SimpleNamespace(requests=0, experts=0, seconds=0.0)
    shares: list[float] = []
    boxes = SimpleNamespace(threads=threads, links={}, share=shares.append, shares=shares)
    made = Balance(boxes)  # type: ignore[arg-type]
    made.fetching = FETCHING
    boxes.links = {0: None}
    return made


def work(balance: Balance, requests: int) -> float:
    """What the threads do of so many requests with the present share; seconds of one."""
    mine = ABSENT * (1 - balance.share)
    threads = balance.boxes.threads
    threads.requests += requests
    threads.experts += requests * mine
    threads.seconds += requests * mine * COMPUTING
    return mine * COMPUTING


def test_both_end_together() -> None:
    subject = balance()
    subject.set(0.9)
    for _ in range(20):
        work(subject, 100)
        subject.adapt()
    computing, fetching = work(subject, 1), ABSENT * subject.share * FETCHING
    assert fetching + LAG == pytest.approx(computing, rel=1e-3)
    assert subject.boxes.shares[-1] == subject.share


def test_few_requests_say_nothing() -> None:
    subject = balance()
    subject.set(0.5)
    work(subject, 10)
    subject.adapt()
    assert subject.share == 0.5


def test_a_slow_cpu_keeps_a_little() -> None:
    subject = balance()
    subject.set(1.0)
    assert subject.share == MOST
    subject.fetching = 1e-9
    work(subject, 100)
    subject.adapt()
    assert subject.share == MOST
