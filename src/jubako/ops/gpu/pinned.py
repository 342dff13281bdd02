"""`Pinned`: main memory that the GPU reads and writes in place, from when it is made until nobody has it any more.

It lies in whole pages of its own. Pages of the C library's heap would be given back and come to lie under something
else, which then counts as pinned in part: copies of it fail, and so does pinning it.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import Any

import numpy as np
import torch

from ...errors import MachineError


class Pinned:
    """`nbytes` at `address`. Arrays made of it (`numpy.asarray`: uint8 [nbytes]) keep it.

    The GPU must be done with it before it goes: it is unpinned, and then `owner`, who has the memory, is let go.
    """

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        """Pin memory that `owner` keeps, as long as this lives. Raises MachineError if the system refuses."""
        runtime = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(address, nbytes, 0))
        if code != 0:
            forget_error()
            raise MachineError(
                f"{nbytes / 1e9:.2f} GB of memory could not be pinned (CUDA error {code}); allow less RAM"
            )
        self.address, self.nbytes = address, nbytes
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        self._release = weakref.finalize(self, _unpin, runtime, address, owner)
        self._release.atexit = False  # the system does it then

    def close(self) -> None:
        """Unpin now, whoever still has it."""
        self._release()


def pages(nbytes: int) -> np.ndarray:
    """Zeroed uint8 [nbytes] in pages of its own, large ones where the system has them; given back with the array."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def room(nbytes: int, device: torch.device) -> np.ndarray:
    """The same, pinned where there is a GPU."""
    memory = pages(nbytes)
    return np.asarray(Pinned(memory.ctypes.data, nbytes, memory)) if device.type == "cuda" else memory


def copy_of(data: np.ndarray, device: torch.device) -> np.ndarray:
    """A copy of an array, in pinned memory where there is a GPU."""
    copy = room(data.nbytes, device).view(data.dtype).reshape(data.shape)
    np.copyto(copy, data)
    return copy


def forget_error() -> None:
    """CUDA tells of a refusal once more with the next launch, whoever's it is: let it be this one."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _unpin(runtime: Any, address: int, owner: object) -> None:
    runtime.cudaHostUnregister(address)
    del owner
