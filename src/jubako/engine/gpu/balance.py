"""How the absent experts of a step are shared between the CPU and the link: so that both end at about the same time.

The GPU counts how long it waits for the threads when its own part is done. A share of the link's that is too small
shows as long waiting, one that is too large as none; experts are whole, so that some is left where both ends are even.
"""

from __future__ import annotations

import numpy as np
import torch

from ...ops.gpu.boxes import Boxes
from ...ops.gpu.far_table import DONE, ERROR, WORDS, await_kernel
from ...ops.gpu.launch import without_overlap
from ...ops.gpu.link import fetch
from ...ops.gpu.target import CUDA, TENSOR, target

MOST = 0.9  # of the experts for the link: what the CPU takes must stay known
LOOKS = 1000  # at a word in main memory, to measure one
# Waiting that is aimed at: of the time of an expert by the CPU and over the link, as whole experts don't share evenly,
EVEN = 0.125
# and of that of one over the link, behind which the next layer's early ones stand, and beside which the threads read.
BEHIND = 0.5
GENTLY = 0.5  # of the way to the new share, at a time
FEWEST = 64  # requests before a new look


class Balance:
    """share: of the absent experts that the GPU fetches itself; fetching: seconds that one takes, 0 where it can't;
    tick: of what the GPU counts while it waits; waiting: that it waited lately, each time."""

    def __init__(self, boxes: Boxes) -> None:
        self.boxes = boxes
        self.share = 0.0
        self.fetching, self.tick = fetching_seconds(boxes), tick_seconds(boxes.counts.device)
        self.waiting = 0.0
        self._seen = self._read()
        state = boxes.mailbox.state
        self._notes = torch.zeros(state.shape, dtype=state.dtype, pin_memory=state.is_cuda)
        self._noted = self._notes.numpy().copy()

    def set(self, share: float) -> None:
        """Begin with a share; 0 where nothing can be fetched."""
        self.share = min(share, MOST) if self.boxes.links else 0.0
        self.boxes.share(self.share)

    def adapt(self) -> None:
        """Look at what the threads did since the last time. What was launched then must be over."""
        now = self._read()
        requests, experts, seconds = (new - old for new, old in zip(now, self._seen, strict=True))
        if not self.fetching or requests < FEWEST or experts == 0:
            return
        waited, times = (self._notes.numpy() - self._noted)[6:8].view(np.uint32).tolist()  # they may wrap
        self._seen, self._noted = now, self._notes.numpy().copy()
        self._notes.copy_(self.boxes.mailbox.state, non_blocking=True)
        if times:
            each, absent = seconds / experts + self.fetching, experts / requests / (1 - self.share)
            self.waiting = self.tick * waited / times
            wanted = self.share + (self.waiting - EVEN * each - BEHIND * self.fetching) / (absent * each)
            self.set(self.share + GENTLY * (max(wanted, 0.0) - self.share))

    def _read(self) -> tuple[float, float, float]:
        threads = self.boxes.threads
        return threads.requests, threads.experts, threads.seconds


def fetching_seconds(boxes: Boxes, runs: int = 3) -> float:
    """Seconds that the GPU takes to fetch an expert; 0 where it can't."""
    if not boxes.links or boxes.counts.device.type != "cuda":
        return 0.0
    layer, link = next(iter(boxes.links.items()))
    count = min(link.most, boxes.residents.experts)
    link.fetched[1 : 1 + count].copy_(torch.arange(count, dtype=torch.int32))
    link.fetched[0] = count
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for run in range(1 + runs):
        if run == 1:
            start.record()
        fetch(link, boxes.residents.slots(layer))
    end.record()
    end.synchronize()
    link.fetched[0] = 0
    return float(start.elapsed_time(end)) / 1000 / runs / count


def tick_seconds(device: torch.device) -> float:
    """Seconds of a tick (`away.ticks`): where the card has no clock, of a look at a word in main memory, which takes
    longer while others use the bus; about a microsecond where there is no card."""
    to = target(device)
    if to.form in (CUDA, TENSOR):
        return 1e-9
    if device.type != "cuda":
        return 1e-6
    state = torch.ones(1, dtype=torch.int32, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        words = torch.zeros(WORDS, dtype=torch.int32, pin_memory=True)
        start.record()
        await_kernel[(1,)](
            words, state, LOOKS, DONE=DONE, ERROR=ERROR, FORM=to.form, OVERLAP=to.overlap, num_warps=1,
            **without_overlap(device),
        )  # fmt: skip
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / LOOKS
