"""How often the time of drafts is looked at, and what is said in between."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from jubako.engine.gpu.clock import EVERY, Clock


def test_the_first_time_that_counts_and_then_now_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        at = -1.0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def elapsed_time(self, end: Event) -> float:
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock, said = Clock(True), []
    for turn in range(EVERY + 3):
        clock.start("short")
        now[0] += turn + 1
        clock.stop(counts=turn > 1)
        said.append(clock.seconds())
    assert said == [0, 0, *[3] * EVERY, EVERY + 3]
    clock.start("long")
    now[0] += 50
    clock.stop()
    assert clock.seconds() == 50


def test_without_a_gpu_nothing_is_timed() -> None:
    clock = Clock(False)
    clock.start("any")
    clock.stop()
    assert clock.seconds() == 0
