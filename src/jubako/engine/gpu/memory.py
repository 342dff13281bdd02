"""Video memory: what is taken, and what is said when it runs out."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ...errors import CardLostError, MachineError


def on_gpus(devices: Sequence[torch.device]) -> list[torch.device]:
    """Those that are GPUs, each once."""
    return [device for device in dict.fromkeys(devices) if device.type == "cuda"]


def allocated(devices: Sequence[torch.device]) -> int:
    """Bytes that tensors take on all of them."""
    return sum(torch.cuda.memory_allocated(device) for device in on_gpus(devices))


def video_bytes(devices: Sequence[torch.device]) -> int:
    """Bytes of the cards; 0 where there are none."""
    return sum(torch.cuda.get_device_properties(device).total_memory for device in on_gpus(devices))


def grow_at_the_end(devices: Sequence[torch.device]) -> None:
    """Let torch's memory of a single card be one piece that grows: else it keeps pieces of the sizes that were once
    asked for, and what a prompt's attention leaves does not serve its experts.

    Not where another card reads and writes there, nor where that is not known to work, nor against the user's own
    settings of torch.
    """
    cards = on_gpus(devices)
    if not cards or any(name in os.environ for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")):
        return
    alone = len(cards) == 1 and torch.version.hip is None and sys.platform == "linux" and not Path("/dev/dxg").exists()
    tell = getattr(torch.cuda.memory, "_set_allocator_settings", None)  # torch has no public name for it
    if tell is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            tell(f"expandable_segments:{alone}")


def too_little(
    devices: Sequence[torch.device], what: str, error: BaseException, advice: Callable[[int], str] | None = None
) -> MachineError:
    """What to raise when video memory ran out with `error`. What was taken meanwhile is given back first; the fullest
    card is named.

    advice: says what would fit where so many bytes are free.
    """
    traceback.clear_frames(error.__traceback__)  # they hold what was taken
    gc.collect()
    torch.cuda.empty_cache()
    device = min(devices, key=lambda device: torch.cuda.mem_get_info(device)[0])
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    card = name if len(devices) == 1 else f"{name} ({device.index})"
    said = advice(free) if advice is not None else "ask for a smaller context, a smaller file, or the CPU"
    return MachineError(f"{what} does not fit: {free / 1e9:.1f} of {card}'s {total / 1e9:.1f} GB are free; {said}")


def tell_lost(devices: Sequence[torch.device], error: RuntimeError) -> None:
    """Raise CardLostError if after `error` one of the cards does not answer any more."""
    for device in on_gpus(devices):
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as fault:
            said = str(fault).splitlines()[0]
            raise CardLostError(
                f"GPU {device.index} stopped answering: {said}; start again: cards that do not answer are left out"
            ) from error
