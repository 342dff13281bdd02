"""`Passage`: tensors from one card to another, in the order of both cards' streams and without the host."""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

STEP_BYTES = 1 << 20  # the streams of a step's columns, and its table, at most


def reaches(source: torch.device, to: torch.device) -> bool:
    """Whether copies can go from card to card."""
    if source.type != "cuda" or source == to:
        return True
    return torch.cuda.can_device_access_peer(source, to)


@triton.jit
def copy_kernel(x, out, count, PIECE: tl.constexpr):
    """Program i: elements PIECE·i on, from another card."""
    i = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    tl.store(out + i, tl.load(x + i, mask=i < count), mask=i < count)


class Passage:
    """From `source` to `to`: by peer copy where there is peer access, else through pinned memory.

    What is sent is read in the order of the source's current stream, and there for all that comes later on the other's.
    Both may be capturing, if as much was sent once before.
    """

    def __init__(self, source: torch.device, to: torch.device, direct: bool | None = None) -> None:
        """direct: by peer copy; None where that is possible."""
        self.source, self.to = source, to
        self.direct = reaches(source, to) if direct is None else direct
        self._launches = self.direct and source.type == "cuda"
        self._step = self._long = torch.empty(0, dtype=torch.uint8)
        if not self.direct:
            self._step = torch.empty(STEP_BYTES, dtype=torch.uint8, pin_memory=True)
        elif source != to:
            self.send(torch.zeros(1, device=source))  # opens the other card's memory to this one

    def send(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of x on the other card."""
        if self.direct:
            return x.to(self.to, non_blocking=True, copy=True)
        there, here = torch.cuda.current_stream(self.source), torch.cuda.current_stream(self.to)
        host = self._room(x.nbytes)[: x.nbytes].view(x.dtype).view(x.shape)
        there.wait_stream(here)  # what was sent before has been taken out of the room
        host.copy_(x, non_blocking=True)
        here.wait_stream(there)
        with torch.cuda.stream(here):
            return host.to(self.to, non_blocking=True)

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """The same of little, by a launch on `to`: copies take several times as long.

        Who calls has the stream there wait for the source's before, and that for this one before x changes.
        """
        if not self._launches:
            return self.send(x)
        out = torch.empty(x.shape, dtype=x.dtype, device=self.to)
        copy_kernel[(-(-x.numel() // 1024),)](x.contiguous(), out, x.numel(), PIECE=1024, num_warps=4)
        return out

    def _room(self, size: int) -> torch.Tensor:
        """Pinned memory; that of steps stays where it is, as captured work knows it."""
        if size <= len(self._step):
            return self._step
        if size > len(self._long):
            self._long = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._long
