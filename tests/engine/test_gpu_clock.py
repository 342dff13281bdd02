"""How often the time of drafts is looked at, and what is said in between."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from jubako.engine.gpu.clock import EVERY, Clock


def test_the_first_time_that_counts_and_then_now_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], [True]

    class Event:
        at = -1.0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def query(self) -> bool:
            return done[0]

        def elapsed_time(self, end: Event) -> float:
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock, said = Clock(True), []
    for turn in range(EVERY + 3):
        clock.start("short")
        now[0] += turn + 1
        clock.stop(counts=turn > 1)
        said.append(clock.seconds("short"))
    assert said == [0, 0, *[3] * EVERY, EVERY + 3]
    clock.start("long")
    now[0] += 50
    clock.stop()
    done[0] = False
    assert clock.seconds("long") == 0, "the device is still at it"
    for _ in range(EVERY + 1):
        clock.start("long")
        now[0] += 7
        clock.stop()
    done[0] = True
    assert clock.seconds("short") == EVERY + 3 and clock.seconds("long") == 50


def test_without_a_gpu_nothing_is_timed() -> None:
    clock = Clock(False)
    clock.start("any")
    clock.stop()
    assert clock.seconds("any") == 0
