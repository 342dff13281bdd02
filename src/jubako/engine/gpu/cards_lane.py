"""`Lane`: how one card's work joins in with another's, so that one captured graph spans both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class Lane:
    """A stream of the card `device`, beside whatever is the current stream of the card `to`. Idle without GPUs."""

    def __init__(self, device: torch.device, to: torch.device) -> None:
        self.device, self.to = device, to
        self._cuda = device.type == "cuda"
        if self._cuda:
            with torch.cuda.device(device):
                self._memory = torch.cuda.MemPool()
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self) -> AbstractContextManager[Any]:
        """Inside, this thread launches on the lane."""
        return torch.cuda.stream(self._stream) if self._cuda else nullcontext()

    def fork(self) -> None:
        """What the lane does from now on comes after what was launched on the other card."""
        if self._cuda:
            self._stream.wait_stream(torch.cuda.current_stream(self.to))

    def join(self) -> None:
        """What is launched on the other card from now on comes after what the lane did."""
        if self._cuda:
            torch.cuda.current_stream(self.to).wait_stream(self._stream)

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Inside, this thread launches on the lane: after what was launched on the other card, before what will be."""
        self.fork()
        with self():
            yield
        self.join()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Inside, work of the other card comes after what was launched on this one, and before what will be."""
        if not self._cuda:
            yield
            return
        there, here = torch.cuda.current_stream(self.device), torch.cuda.current_stream(self.to)
        here.wait_stream(there)
        yield
        there.wait_stream(here)

    def capturing(self) -> AbstractContextManager[Any]:
        """Inside, memory of the lane's card is taken for a graph that is being captured."""
        return torch.cuda.use_mem_pool(self._memory, self.device) if self._cuda else nullcontext()
