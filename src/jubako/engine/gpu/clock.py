"""How long drafts take on the device, looked at now and then: events cost the host time between steps."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

EVERY = 16  # of so many times one is looked at


class Clock:
    """Seconds of work of several kinds, the last that were looked at of each. Where there is no GPU they are 0."""

    def __init__(self, on_gpu: bool) -> None:
        event: Any = torch.cuda.Event
        self._events = [event(enable_timing=True) for _ in range(2)] if on_gpu else []
        self._times: dict[Hashable, int] = {}
        self._seconds: dict[Hashable, float] = {}
        self._kind: Hashable = None  # of the work at hand
        self._looks = False  # it is looked at
        self._seen: Hashable = None  # the kind that was looked at and that nobody has asked about since

    def start(self, kind: Hashable) -> None:
        """Work of this kind begins, on this thread's stream."""
        times = self._times[kind] = self._times.get(kind, -1) + 1
        self._kind, self._looks = kind, bool(self._events) and self._seen is None and times % EVERY == 0
        if self._looks:
            self._events[0].record()

    def stop(self, counts: bool = True) -> None:
        """It ends. counts: False if there was other work in between, such as a graph's capture: the next time is
        looked at instead."""
        if self._looks and counts:
            self._events[1].record()
            self._seen = self._kind
        elif self._looks:
            self._times[self._kind] -= 1
        self._looks = False

    def seconds(self, kind: Hashable) -> float:
        """Of work of this kind, as far as the device is done with it."""
        if self._seen is not None and self._events[1].query():
            self._seconds[self._seen] = self._events[0].elapsed_time(self._events[1]) / 1000
            self._seen = None
        return self._seconds.get(kind, 0.0)
