"""How the absent experts of a step are shared between the CPU and the link: so that both end at once.

The CPU's time for an expert is what its threads took lately, beside the GPU's reading, which slows them. The link's is
measured once: threads that read the same memory hardly slow it (on the H200's machine 49.5 of 50.9 GB/s are left).
"""

from __future__ import annotations

import torch

from ...ops.gpu.boxes import Boxes
from ...ops.gpu.link import fetch

MOST = 0.9  # of the experts for the link: what the CPU takes must stay known
LAG = 15e-6  # seconds that the GPU needs for what it fetched, after which it waits for the CPU
GENTLY = 0.5  # of the way to the new share, at a time
FEWEST = 64  # requests before a new look


class Balance:
    """share: of the absent experts that the GPU fetches itself; fetching: seconds that one takes, 0 where it can't."""

    def __init__(self, boxes: Boxes) -> None:
        self.boxes = boxes
        self.share = 0.0
        self.fetching = fetching_seconds(boxes)
        self._seen = self._read()

    def set(self, share: float) -> None:
        """Begin with a share; 0 where nothing can be fetched."""
        self.share = min(share, MOST) if self.boxes.links else 0.0
        self.boxes.share(self.share)

    def adapt(self) -> None:
        """Look at what the threads did since the last time."""
        now = self._read()
        requests, experts, seconds = (new - old for new, old in zip(now, self._seen, strict=True))
        if not self.fetching or requests < FEWEST or experts == 0:
            return
        self._seen = now
        computing, absent = seconds / experts, experts / requests / (1 - self.share)
        wanted = (absent * computing - LAG) / (absent * (computing + self.fetching))
        wanted = min(max(wanted, 0.0), MOST)
        self.set(self.share + GENTLY * (wanted - self.share))

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
        fetch(link, boxes.residents.slots(layer), count)
    end.record()
    end.synchronize()
    link.fetched[0] = 0
    return float(start.elapsed_time(end)) / 1000 / runs / count
