"""The link's share of the absent experts settles where both sides end at about the same time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from jubako.engine.gpu.balance import BEHIND, MOST, Balance

FETCHING, OWN = 43e-6, 14e-6  # seconds of an expert over the link; of those in slots


class Machine:
    """Layers of a random number of absent experts. Seconds of one by the threads, and until they are heard of. What is
    fetched keeps what comes early waiting."""

    def __init__(self, absent: tuple[int, int], computing: float, handing: float) -> None:
        self.absent, self.computing, self.handing = absent, computing, handing
        self.threads = SimpleNamespace(requests=0, experts=0, seconds=0.0)
        self.state = torch.zeros(8, dtype=torch.int32)
        boxes = SimpleNamespace(
            threads=self.threads, links={}, counts=self.state, share=lambda share: None,
            mailbox=SimpleNamespace(state=self.state),
        )  # fmt: skip
        self.balance = Balance(boxes)  # type: ignore[arg-type]
        self.balance.fetching = FETCHING
        boxes.links = {0: None}
        self.rng = np.random.default_rng(5)

    def run(self, layers: int, share: float | None = None) -> float:
        """Seconds of a layer, on the average."""
        total, ticks, waits = 0.0, 0, 0
        for absent in self.rng.integers(*self.absent, layers).tolist():
            linked = int(absent * (self.balance.share if share is None else share) + 0.5)
            mine = linked * FETCHING + OWN
            theirs = (absent - linked) * self.computing + self.handing if linked < absent else 0.0
            if linked < absent:
                self.threads.requests += 1
                self.threads.experts += absent - linked
                self.threads.seconds += (absent - linked) * self.computing
                ticks += round(max(theirs - mine, 0.0) / self.balance.tick)
                waits += 1
            total += max(mine, theirs) + linked * BEHIND * FETCHING
        self.state[6:8] += torch.tensor([ticks, waits], dtype=torch.int32)
        return total / layers


@pytest.mark.parametrize("absent", [(8, 11), (3, 6), (1, 4)])
@pytest.mark.parametrize(("computing", "handing"), [(40e-6, 40e-6), (28e-6, 10e-6), (120e-6, 20e-6)])
def test_it_is_nearly_as_fast_as_the_best_share(absent: tuple[int, int], computing: float, handing: float) -> None:
    machine = Machine(absent, computing, handing)
    machine.balance.set(0.5)
    for _ in range(40):
        machine.run(400)
        machine.balance.adapt()
    settled = machine.run(4000)
    best = min(machine.run(4000, share / 20) for share in range(19))
    assert settled <= 1.08 * best


def test_few_requests_say_nothing() -> None:
    machine = Machine((5, 6), 40e-6, 0.0)
    machine.balance.set(0.5)
    machine.run(10)
    machine.balance.adapt()
    assert machine.balance.share == 0.5


def test_a_slow_cpu_keeps_a_little() -> None:
    machine = Machine((5, 6), 1.0, 0.0)
    machine.balance.set(1.0)
    assert machine.balance.share == MOST
    for _ in range(4):
        machine.run(100, 0.5)
        machine.balance.adapt()
    assert machine.balance.share == MOST
